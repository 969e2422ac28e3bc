/// Scratch memory of f32 values (or words of the same size) that starts on a cache line: register tiles load whole
/// lines, and a load across two lines costs twice.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Buffer {
    /// At least `len` zeros.
    pub(super) fn new(len: usize) -> Self {
        Self { lines: vec![Line([0.0; 16]); len.div_ceil(16)] }
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.lines.len() * 16
    }

    /// The first value.
    pub(super) fn ptr(&mut self) -> *mut f32 {
        self.lines.as_mut_ptr().cast()
    }
}
