//! Building blocks shared by the CPU variants.
