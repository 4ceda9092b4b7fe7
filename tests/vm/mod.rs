//! The VM bed.
