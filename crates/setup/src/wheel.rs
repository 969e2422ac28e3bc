//! Wheels as files: parses their names, unpacks their contents as an installer would, compares every file with RECORD,
//! and then installs them in place. No code of a wheel is run.

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
