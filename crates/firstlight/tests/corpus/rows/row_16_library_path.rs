//! Row 16: LD_LIBRARY_PATH puts the nvJitLink of a system's CUDA 12.1 in front of the one that torch's cuSPARSE was built
//! with, or names a folder without it.

use super::{OLD, TORCH};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const CUSPARSE: &str = "nvidia/cusparse/lib/libcusparse.so.12";

pub(super) const PAIR: Pair = Pair {
    name: "row_16_library_path",
    rule: "library-path-shadows",
    found: Detection::Files(Severity::Error, CUSPARSE),
    says: "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
    opens: &[TORCH, CUSPARSE],
    build: |twin| {
        let link = |version: &str| {
            let symbol = format!("__nvJitLinkComplete_{version}@libnvJitLink.so.12");
            Library::named("libnvJitLink.so.12").exports(&[&symbol])
        };
        let cusparse = Library::named("libcusparse.so.12")
            .linked_with(&link("12_4"))
            .wants(&["__nvJitLinkComplete_12_4"])
            .search("RUNPATH $ORIGIN/../../nvjitlink/lib");
        World::on("a10")
            .torch("2.5.1+cu124", &[OLD], &[])
            .dist("nvidia_cusparse_cu12", "12.3.1.170", &[CUSPARSE])
            .dist("nvidia_nvjitlink_cu12", "12.4.127", &["nvidia/nvjitlink/lib/libnvJitLink.so.12"])
            .library(CUSPARSE, &cusparse)
            .library("nvidia/nvjitlink/lib/libnvJitLink.so.12", &link("12_4"))
            .library_at("usr/local/cuda-12.1/lib64/libnvJitLink.so.12", &link("12_1"))
            .var(
                "LD_LIBRARY_PATH",
                twin.pick("~/usr/local/cuda-12.1/lib64", "~/usr/local/cuda-12.1/lib"),
            )
    },
    ..BLANK
};
