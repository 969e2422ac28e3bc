//! Compares the model of the loader with the real one: small libraries are compiled, the probe predicts the result, and
//! a program instead of Python opens them.

mod fatbins;
mod hostile;
mod loading;
mod world;
