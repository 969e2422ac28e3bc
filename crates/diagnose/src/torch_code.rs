//! Which GPUs the installed torch has code for: by the images in its libtorch_cuda.so, and by the table of published
//! builds where that file could not be read.

use crate::gpu::{self, Sm};
use crate::gpu_code::{Target, architectures};
use crate::native::{Native, files};
use crate::torch_build::published;
use facts::{Confidence, Evidence, Gpu, GpuImageKind, GpuReach, Machine, MachineKind, PyEnv};
use knowledge::torch_builds::Build;

/// The GPU code of one torch.
pub(crate) struct TorchCode<'a> {
    machine: &'a Machine,
    seen: Seen<'a>,
}

enum Seen<'a> {
    Bytes(Native<'a>),
    Table(&'static Build),
}

impl<'a> TorchCode<'a> {
    /// `None` for a torch without CUDA, and for one the table does not know and whose files were not read.
    pub(crate) fn of(machine: &'a Machine, env: &'a PyEnv) -> Option<Self> {
        let library = files(env).find(|native| {
            native.is_torch()
                && native.file.name() == "libtorch_cuda.so"
                && !native.elf.gpu_code.is_empty()
        });
        let seen = match library {
            Some(native) => Seen::Bytes(native),
            None => Seen::Table(published(machine, env)?),
        };
        Some(Self { machine, seen })
    }

    /// The GPUs here that nothing in it runs on.
    pub(crate) fn unserved(&self) -> Vec<(&'a Gpu, Sm)> {
        gpu::capabilities(self.machine).into_iter().filter(|(_, sm)| !self.serves(*sm)).collect()
    }

    /// Whether it has code for a GPU; PTX the driver does not know is code too, and another rule's matter.
    fn serves(&self, sm: Sm) -> bool {
        match &self.seen {
            Seen::Bytes(native) => {
                let coverage = Target::of(self.machine, sm).coverage(&native.elf.gpu_code);
                // A few containers are for single architectures on purpose; a GPU that most leave out is not served.
                coverage.none.saturating_mul(2) < coverage.total()
            }
            Seen::Table(build) if self.machine.kind == MachineKind::Jetson => {
                build.sm.contains(&sm)
            }
            Seen::Table(build) => build.runs_on(sm),
        }
    }

    /// The oldest architecture it has machine code for.
    pub(crate) fn oldest(&self) -> Sm {
        match &self.seen {
            Seen::Bytes(_) => self.cubins().min().unwrap_or((0, 0)),
            Seen::Table(build) => build.oldest(),
        }
    }

    /// The newest architecture it has machine code for that carries on.
    pub(crate) fn newest(&self) -> Sm {
        match &self.seen {
            Seen::Bytes(_) => self.cubins().max().unwrap_or((0, 0)),
            Seen::Table(build) => build.newest(),
        }
    }

    fn cubins(&self) -> impl Iterator<Item = Sm> {
        let code = match &self.seen {
            Seen::Bytes(native) => native.elf.gpu_code.as_slice(),
            Seen::Table(_) => &[],
        };
        code.iter()
            .flat_map(|group| &group.images)
            .filter(|image| image.kind == GpuImageKind::Cubin && image.reach == GpuReach::Onward)
            .map(|image| image.sm)
    }

    /// The newest architecture it has PTX for.
    pub(crate) fn ptx(&self) -> Option<Sm> {
        match &self.seen {
            Seen::Bytes(native) => {
                let images = native.elf.gpu_code.iter().flat_map(|group| &group.images);
                images.filter(|image| image.kind == GpuImageKind::Ptx).map(|image| image.sm).max()
            }
            Seen::Table(build) => build.ptx,
        }
    }

    /// How sure this is: what was read is certain, what a table says of a label is likely.
    pub(crate) fn confidence(&self) -> Confidence {
        match self.seen {
            Seen::Bytes(_) => Confidence::Certain,
            Seen::Table(_) => Confidence::Likely,
        }
    }

    /// The list of architectures and where it is from.
    pub(crate) fn evidence(&self) -> Evidence {
        let (list, source) = match &self.seen {
            Seen::Bytes(native) => (architectures(&native.elf.gpu_code), native.file.path.clone()),
            Seen::Table(build) => (build.architectures(), build.source.to_string()),
        };
        Evidence { what: format!("that build has {list}"), source }
    }
}
