//! Short names of an enum's variants, for messages and for `docs/recovery.md`.
//!
//! One list gives both a value's name and the list of all names, so that neither can
//! have one that the other lacks: a new variant does not compile until it is listed.

/// Gives a type `NAMES` and `name`, in the order of its variants.
macro_rules! names {
    ($type:ident: $($variant:ident => $name:literal,)+) => {
        impl $type {
            /// Every short name; `docs/recovery.md` has an entry for each.
            pub const NAMES: &[&str] = &[$($name),+];

            /// The short name, as `docs/recovery.md` lists it.
            pub fn name(&self) -> &'static str {
                match self {
                    $($type::$variant { .. } => $name,)+
                }
            }
        }
    };
}

pub(crate) use names;
