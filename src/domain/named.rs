//! Enums whose variants have a name outside Rust, and numbers of ledger columns.

use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// The OpenAPI schema of a text that is one of `names`.
pub fn schema_of(names: impl IntoIterator<Item = &'static str>) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).build()
}

/// Declares an enum with one name per variant: in JSON, in OpenAPI, in metrics and in ledger
/// columns of text.
macro_rules! named_enum {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident $(= $number:literal)? => $text:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $variant $(= $number)?,)+
        }

        impl $name {
            /// In the order of the declaration.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::domain::named::schema_of(Self::ALL.map(Self::name)).into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

/// The numbers of named enums in columns of the ledger.
macro_rules! ledger_numbers {
    ($($name:ident)+) => {$(
        impl $name {
            pub fn to_db(self) -> i16 {
                self as i16
            }

            /// Converts from the ledger's column; `None`: unknown number.
            pub fn from_db(number: i16) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.to_db() == number)
            }
        }
    )+};
}

pub(crate) use {ledger_numbers, named_enum};

#[cfg(test)]
mod tests {
    use crate::domain::{DeadLetterOrigin, OrderState};

    #[test]
    fn names_and_numbers_read_back() {
        for origin in DeadLetterOrigin::ALL {
            assert_eq!(DeadLetterOrigin::from_name(origin.name()), Some(origin));
        }
        assert_eq!(DeadLetterOrigin::from_name("moon"), None);
        for state in OrderState::ALL {
            assert_eq!(OrderState::from_db(state.to_db()), Some(state));
        }
        assert_eq!(OrderState::from_db(6), None);
    }
}
