//! The GPUs that the installed torch has code for: from the images in its libtorch_cuda.so, or from the table of
//! published builds if that file was not read.

use crate::gpu::{self, Sm};
use crate::gpu_code::{Target, architectures};
use crate::native::{Native, files};
use crate::torch_build::published;
use facts::{Confidence, Evidence, Gpu, GpuImageKind, GpuReach, Machine, MachineKind, PyEnv};
use knowledge::torch_builds::Build;

/// The GPU code of one torch.
pub(crate) struct TorchCode<'a> {
    machine: &'a Machine,
    source: CodeSource<'a>,
}

enum CodeSource<'a> {
    Bytes(Native<'a>),
    Table(&'static Build),
}

impl<'a> TorchCode<'a> {
    /// `None` for a torch without CUDA, and for one whose files were not read and that the table does not list.
    pub(crate) fn of(machine: &'a Machine, env: &'a PyEnv) -> Option<Self> {
        let library = files(env).find(|native| {
            native.is_torch()
                && native.file.name() == "libtorch_cuda.so"
                && !native.elf.gpu_code.is_empty()
        });
        let source = match library {
            Some(native) => CodeSource::Bytes(native),
            None => CodeSource::Table(published(machine, env)?),
        };
        Some(Self { machine, source })
    }

    /// The GPUs here on which none of its code runs.
    pub(crate) fn unserved(&self) -> Vec<(&'a Gpu, Sm)> {
        gpu::capabilities(self.machine).into_iter().filter(|(_, sm)| !self.serves(*sm)).collect()
    }

    /// Whether it has code for a GPU. PTX that the driver does not support counts; another rule reports it.
    fn serves(&self, sm: Sm) -> bool {
        match &self.source {
            CodeSource::Bytes(native) => {
                let coverage = Target::of(self.machine, sm).coverage(&native.elf.gpu_code);
                // A few containers are for single architectures on purpose; a GPU is not served if at least half have
                // no code for it.
                coverage.none.saturating_mul(2) < coverage.total()
            }
            CodeSource::Table(build) if self.machine.kind == MachineKind::Jetson => {
                build.sm.contains(&sm)
            }
            CodeSource::Table(build) => build.runs_on(sm),
        }
    }

    /// The oldest architecture with machine code.
    pub(crate) fn oldest(&self) -> Sm {
        match &self.source {
            CodeSource::Bytes(_) => self.cubins().min().unwrap_or((0, 0)),
            CodeSource::Table(build) => build.oldest(),
        }
    }

    /// The newest architecture whose machine code also runs on later minor versions.
    pub(crate) fn newest(&self) -> Sm {
        match &self.source {
            CodeSource::Bytes(_) => self.cubins().max().unwrap_or((0, 0)),
            CodeSource::Table(build) => build.newest(),
        }
    }

    fn cubins(&self) -> impl Iterator<Item = Sm> {
        let code = match &self.source {
            CodeSource::Bytes(native) => native.elf.gpu_code.as_slice(),
            CodeSource::Table(_) => &[],
        };
        code.iter()
            .flat_map(|group| &group.images)
            .filter(|image| image.kind == GpuImageKind::Cubin && image.reach == GpuReach::Onward)
            .map(|image| image.sm)
    }

    /// The newest architecture with PTX.
    pub(crate) fn ptx(&self) -> Option<Sm> {
        match &self.source {
            CodeSource::Bytes(native) => {
                let images = native.elf.gpu_code.iter().flat_map(|group| &group.images);
                images.filter(|image| image.kind == GpuImageKind::Ptx).map(|image| image.sm).max()
            }
            CodeSource::Table(build) => build.ptx,
        }
    }

    /// Certain if the file was read, likely if the code is known from the table.
    pub(crate) fn confidence(&self) -> Confidence {
        match self.source {
            CodeSource::Bytes(_) => Confidence::Certain,
            CodeSource::Table(_) => Confidence::Likely,
        }
    }

    /// The list of architectures and its source.
    pub(crate) fn evidence(&self) -> Evidence {
        let (list, source) = match &self.source {
            CodeSource::Bytes(native) => {
                (architectures(&native.elf.gpu_code), native.file.path.clone())
            }
            CodeSource::Table(build) => (build.architectures(), build.source.to_string()),
        };
        Evidence { what: format!("that build has {list}"), source }
    }
}
