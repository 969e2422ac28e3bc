//! Mamba's selective scan on the CPU.

mod channels;
mod operands;
mod states;

use crate::CpuTable;
use crate::variants::variants;
use channels::Channels;
use operands::Scan;
use ops::selective_scan::SelectiveScanProblem;
use states::States;

/// Every variant, best first.
pub(crate) static CPU: CpuTable<SelectiveScanProblem> = CpuTable(variants! {
    "selective_scan":
    Channels Avx512 "channels.avx512",
    Channels Avx2 "channels.avx2",
    Channels Neon "channels.neon",
    Channels Portable "channels.portable",
    States Avx512 "states.avx512",
    States Avx2 "states.avx2",
    States Neon "states.neon",
    States Portable "states.portable",
});
