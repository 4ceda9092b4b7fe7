//! Power cuts.
