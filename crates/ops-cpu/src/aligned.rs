//! Scratch memory that starts at a cache line.
#![allow(unsafe_code)] // Cache lines viewed as the floats they hold.

/// One cache line: the widest vector of any instruction set here.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A float32 buffer whose first element starts a cache line. A vector that straddles two lines costs two accesses,
/// which halves the speed of loops that load and store as much as they compute.
#[derive(Default)]
pub(crate) struct Aligned {
    lines: Vec<Line>,
}

impl Aligned {
    /// The first `len` values; what they hold is whatever was last written there, or zero.
    pub(crate) fn of_len(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(size_of::<Line>() / size_of::<f32>());
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; 16]));
        }
        // SAFETY: a line is 16 floats without padding, and there are enough of them.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    /// All values of the lines there are.
    pub(crate) fn values(&self) -> &[f32] {
        let len = self.lines.len() * size_of::<Line>() / size_of::<f32>();
        // SAFETY: a line is 16 floats without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_lines_and_keep_their_values() {
        let mut buffer = Aligned::default();
        assert!(buffer.of_len(0).is_empty());
        for len in [1, 16, 17, 1000] {
            let values = buffer.of_len(len);
            assert_eq!(values.len(), len);
            assert!(values.as_ptr().addr().is_multiple_of(64));
            values[len - 1] = len as f32;
            assert_eq!(buffer.of_len(len)[len - 1], len as f32);
            assert_eq!(buffer.values()[len - 1], len as f32);
        }
    }
}
