//! Wheels as files: their names taken apart, and their contents laid out as an installer would, after every file was held
//! against the wheel's own list. Nothing of a wheel is run.

mod error;
mod name;
mod record;
mod unpack;

pub use error::WheelError;
pub use name::WheelName;
pub use unpack::{Unpacked, unpack};
