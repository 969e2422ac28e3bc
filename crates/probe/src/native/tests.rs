//! The model of the loader against the loader itself: tiny libraries are compiled, the probe says what would happen to
//! them, and a program that stands for Python opens them.

mod fatbins;
mod hostile;
mod loading;
mod world;
