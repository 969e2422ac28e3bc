//! What was published, as rows that carry where they were read and when: torch builds and their GPU code, driver floors,
//! wheels of extensions, indexes, build recipes, profiles and machines known by name.
//!
//! Data with its look-ups; deciding is for the rooms that import it.
