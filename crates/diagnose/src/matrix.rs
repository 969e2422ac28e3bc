//! The platform support matrix of `firstlight plan --matrix` (row R1-08).

use facts::{
    Machine, MachineKind, PlanTarget, SCHEMA, Support, SupportCell, SupportMatrix, SupportRow,
};
use knowledge::Citation;

/// The three columns.
const PLATFORMS: [&str; 3] = ["x86_64 CUDA", "arm64 CUDA", "arm64 MPS"];

const METADATA: Citation = Citation::of(
    "METADATA and file names of the torch and triton wheels on PyPI; pytorch#160162, pytorch#168065",
    "2026-11-21",
);
const MPS: Citation = Citation::of(
    "PyTorch documentation, MPS backend; row R1-07 for where macOS wheels come from",
    "2026-11-21",
);
const BITSANDBYTES: Citation = Citation::of(
    "bitsandbytes 0.50 installation guide: official support and PyPI build targets; bitsandbytes#1941",
    "2026-11-21",
);
const FLASH: Citation = Citation::of(
    "flash-attention README and issues #1866, #2045, #644: prebuilt wheels are linux_x86_64",
    "2026-11-21",
);
const DEEPSPEED: Citation = Citation::of(
    "DeepSpeed's abstract accelerators (mps by pull request #3907); it is a source package on PyPI",
    "2026-11-21",
);
const TRITON: Citation = Citation::of(
    "file names of the triton wheels on PyPI: manylinux x86_64, and aarch64 from 3.5.0",
    "2026-11-21",
);
const NCCL: Citation = Citation::of(
    "torch METADATA (nvidia-nccl on both Linux architectures); Lightning documentation: one MPS device at a time",
    "2026-11-21",
);
const DOCKER: Citation = Citation::of(
    "NVIDIA container toolkit installation guide; Docker's announcement of vllm-metal: no Metal in containers",
    "2026-02-26",
);

type Cell = (Support, &'static str, Citation);

const fn yes(reason: &'static str, source: Citation) -> Cell {
    (Support::Yes, reason, source)
}

const fn partly(reason: &'static str, source: Citation) -> Cell {
    (Support::Partly, reason, source)
}

const fn no(reason: &'static str, source: Citation) -> Cell {
    (Support::No, reason, source)
}

/// One row per component: its name, then one cell per platform.
const ROWS: &[(&str, [Cell; 3])] = &[
    (
        "PyTorch",
        [
            yes("CUDA wheels on PyPI and on PyTorch's indexes", METADATA),
            yes(
                "CUDA wheels on PyPI from 2.11 on; older ones only on PyTorch's indexes, PyPI's are CPU-only",
                METADATA,
            ),
            yes("macOS wheels on PyPI", MPS),
        ],
    ),
    (
        "backend",
        [
            yes("cuda", METADATA),
            yes("cuda; a Jetson (Tegra) needs NVIDIA's own builds below Thor", METADATA),
            partly(
                "mps: operators that are missing fall back to the CPU with PYTORCH_ENABLE_MPS_FALLBACK=1",
                MPS,
            ),
        ],
    ),
    (
        "bitsandbytes",
        [
            yes(
                "libraries for each CUDA release it was built for; torch's must be among them",
                BITSANDBYTES,
            ),
            yes("aarch64 wheels for server Arm (sbsa); a Jetson builds from source", BITSANDBYTES),
            partly(
                "supported officially since 0.50; earlier releases are CUDA only there",
                BITSANDBYTES,
            ),
        ],
    ),
    (
        "AdamW8bit",
        [
            yes("bitsandbytes' 8-bit optimizers run from compute capability 6.0 on", BITSANDBYTES),
            yes("as bitsandbytes", BITSANDBYTES),
            partly(
                "as bitsandbytes; where it is older than 0.50, torch.optim.AdamW takes its place",
                BITSANDBYTES,
            ),
        ],
    ),
    (
        "flash-attn",
        [
            yes("wheels for chosen torch releases; compute capability 8.0 and newer", FLASH),
            partly("no official wheel: compile (MAX_JOBS) or take a community wheel", FLASH),
            no("CUDA code only; scaled_dot_product_attention takes its place", FLASH),
        ],
    ),
    (
        "deepspeed",
        [
            yes("operators compile when first used and need nvcc", DEEPSPEED),
            partly(
                "compiles from source; operators with x86 intrinsics (CPU Adam) have other paths",
                DEEPSPEED,
            ),
            no(
                "its accelerator for mps runs small models only; DDP or a single process takes its place",
                DEEPSPEED,
            ),
        ],
    ),
    (
        "triton",
        [
            yes("pinned by each CUDA torch", TRITON),
            yes("wheels from 3.5.0 on; before, only with PyTorch's own index", TRITON),
            no("no Metal backend", TRITON),
        ],
    ),
    (
        "multi-GPU",
        [
            yes("NCCL", NCCL),
            yes("NCCL; the wheels bring it on both architectures", NCCL),
            no("one GPU a machine, and no NCCL", NCCL),
        ],
    ),
    (
        "Docker",
        [
            yes("with NVIDIA's container toolkit: docker run --gpus all", DOCKER),
            yes(
                "with NVIDIA's container toolkit and an arm64 image of the CUDA release that `firstlight plan` chooses",
                DOCKER,
            ),
            no("containers see no Metal GPU: the CPU only", DOCKER),
        ],
    ),
];

/// The matrix, with the column of the machine's platform marked.
pub fn matrix(machine: &Machine) -> SupportMatrix {
    let here = match machine.kind {
        MachineKind::X86Cuda => Some(PLATFORMS[0]),
        MachineKind::ArmCuda => Some(PLATFORMS[1]),
        MachineKind::AppleSilicon => Some(PLATFORMS[2]),
        // A Jetson is not an Arm server, and no column describes a machine without a GPU.
        _ => None,
    };
    let row = |(component, cells): &(&str, [Cell; 3])| SupportRow {
        component: (*component).to_owned(),
        cells: PLATFORMS.into_iter().zip(cells).map(|(name, it)| cell(name, it)).collect(),
    };
    SupportMatrix {
        schema: SCHEMA,
        platforms: PLATFORMS.map(str::to_owned).to_vec(),
        here: here.map(str::to_owned),
        rows: ROWS.iter().map(row).collect(),
    }
}

fn cell(platform: &str, (support, reason, source): &Cell) -> SupportCell {
    SupportCell {
        platform: platform.to_owned(),
        support: *support,
        reason: (*reason).to_owned(),
        source: source.what.to_string(),
        date: source.date.to_string(),
    }
}

/// The column of a named target's platform, under the target's own name. Without a GPU its only backend is the CPU.
pub fn matrix_of(target: &PlanTarget) -> SupportMatrix {
    let column = match (target.os.as_str(), target.arch.as_str()) {
        ("macos", _) => 2,
        (_, "aarch64") => 1,
        _ => 0,
    };
    let none = target.gpus.is_empty() && target.os != "macos";
    let row = |(component, cells): &(&str, [Cell; 3])| {
        let cell = match *component {
            "backend" if none => {
                cell(&target.name, &yes("cpu: the machine has no NVIDIA GPU", METADATA))
            }
            "AdamW8bit" | "multi-GPU" if none => {
                cell(&target.name, &no("it needs an NVIDIA GPU", BITSANDBYTES))
            }
            "Docker" if none => {
                cell(&target.name, &yes("any engine; there is no GPU to hand on", DOCKER))
            }
            _ => cell(&target.name, &cells[column]),
        };
        SupportRow { component: (*component).to_owned(), cells: vec![cell] }
    };
    SupportMatrix {
        schema: SCHEMA,
        platforms: vec![target.name.clone()],
        here: None,
        rows: ROWS.iter().map(row).collect(),
    }
}

/// The package of a row; `None` if the row is not about a package.
pub fn package_of(component: &str) -> Option<&'static str> {
    match component {
        "PyTorch" => Some("torch"),
        "bitsandbytes" => Some("bitsandbytes"),
        "flash-attn" => Some("flash-attn"),
        "deepspeed" => Some("deepspeed"),
        "triton" => Some("triton"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::machines;

    #[test]
    fn every_cell_has_a_reason_and_a_source() {
        let matrix = matrix(&machines::x86());
        assert_eq!((matrix.rows.len(), matrix.platforms.len()), (9, 3));
        for row in &matrix.rows {
            assert_eq!(row.cells.len(), 3, "{}", row.component);
            for cell in &row.cells {
                assert!(cell.reason.len() > 3 && cell.source.len() > 10, "{row:?}");
            }
        }
        for (_, cells) in ROWS {
            cells.iter().for_each(|(_, _, source)| assert_eq!(source.check(), Ok(())));
        }
    }

    #[test]
    fn a_machine_finds_its_column() {
        let here = |machine: &Machine| matrix(machine).here;
        assert_eq!(here(&machines::h200()).as_deref(), Some("x86_64 CUDA"));
        assert_eq!(here(&machines::gh200()).as_deref(), Some("arm64 CUDA"));
        assert_eq!(here(&machines::m3_max()).as_deref(), Some("arm64 MPS"));
        assert_eq!(here(&machines::jetson_orin()), None);
        assert_eq!(here(&machines::x86()), None);
    }
}
