//! Plans as files: what they say, that they are read back, and that the tools they are for take them.

mod index;
mod lock;
mod plans;
mod pyproject;
mod round_trip;
mod tools;
