//! The output head: logits of the wanted rows.

use super::run::Run;
use super::weights::CudaProjection;
use crate::engine::LogitsSelection;
use crate::program::{Input, RmsNorm};
use ops::linear::{LinearCall, OutputType};
use ops::{OpError, Tensor};
use ops_cuda::decoder;

impl Run<'_> {
    /// Logits `[rows, vocabulary]` of the wanted rows, or hidden states `[tokens, hidden]`.
    pub(super) fn head(
        &self,
        of: &CudaProjection,
        norm: &RmsNorm,
        wanted: LogitsSelection,
    ) -> Result<Tensor, OpError> {
        if wanted == LogitsSelection::Hidden {
            return self.made(Input::stream(norm));
        }
        let (sequences, hidden) = (self.pass.sequences, self.x.shape()[1]);
        let (x, norm) = match self.whole_norm(Input::stream(norm))? {
            Some(rows) => (rows, None),
            None => (self.x.clone(), Some(norm.prologue())),
        };
        let x = if wanted == LogitsSelection::Last && self.pass.tokens > sequences {
            let last = self.tensor(&[sequences, hidden], x.dtype())?;
            let buffers = [x.on()?, &self.pass.last, last.on()?];
            // Gathered as 32-bit words; a bfloat16 row has half as many.
            let words = x.dtype().bytes_of(hidden) / 4;
            self.push(decoder::take(self.device, buffers, sequences, words)?)?;
            last
        } else {
            x
        };
        let (size @ [rows, width], out) = ([x.shape()[0], of.outputs()], Some(OutputType::F32));
        let call = LinearCall { norm, scale: self.logits_scale, out, ..of.of(&x) };
        if let Some(share) = &self.share {
            return self.whole_rows(share, call, size);
        }
        let logits = self.logits_tensor([rows, width])?;
        self.call(&call.into([&logits]))?;
        Ok(logits)
    }
}
