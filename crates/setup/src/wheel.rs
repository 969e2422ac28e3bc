//! Wheels as files: their names taken apart, and their contents laid out as an installer would, after every file was held
//! against the wheel's own list, and then installed where they lie. Nothing of a wheel is run.

mod error;
mod layout;
mod name;
mod record;
mod scripts;
mod unpack;

pub use error::WheelError;
pub(crate) use layout::Layout;
pub use name::WheelName;
pub(crate) use record::{Lines, hash_of};
pub use unpack::{Unpacked, unpack};
