use super::SelectiveScanProblem;
use super::channels::Channels;
use super::operands::Scan;
use super::states::States;
use crate::Variant;
use crate::cpu::variants::variants;

/// Every variant, best first.
pub(super) static VARIANTS: &[Variant<SelectiveScanProblem>] = variants! {
    "selective_scan":
    Channels Avx512 "channels.avx512",
    Channels Avx2 "channels.avx2",
    Channels Neon "channels.neon",
    Channels Portable "channels.portable",
    States Avx512 "states.avx512",
    States Avx2 "states.avx2",
    States Neon "states.neon",
    States Portable "states.portable",
};
