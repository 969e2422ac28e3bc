//! Communication between the stages of a pipeline-parallel model.

use super::line::Kind;
use super::{Ranks, bytes_of, put};
use crate::ModelError;

impl Ranks {
    /// Receives the residual stream from the previous stage; unchanged on the first stage.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming the one that has ended.
    pub(crate) fn recv_hidden(&self, rows: &mut [f32]) -> Result<(), ModelError> {
        if self.place.rank == 0 {
            return Ok(());
        }
        let before = self.star().answer()?;
        put(&before, 0, rows, |row, value| *row = value)
    }

    /// Sends `own` to the next stage: the residual stream, or on the last stage its logits. Returns the logits on all
    /// stages.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming the one that has ended; [`ModelError::Call`] naming one that failed.
    pub(crate) fn send_hidden(&self, own: &[f32]) -> Result<Vec<f32>, ModelError> {
        let mut star = self.star();
        let logits = match self.place.rank {
            // All connections are at rank 0, which forwards rows from each other rank to the next.
            0 => {
                let mut rows = bytes_of(own);
                for next in 1..self.place.ranks {
                    star.send_to(next, &rows)?;
                    rows = star.part(next)?;
                }
                star.send_all(Kind::Values, &rows)?;
                rows
            }
            _ => {
                star.send_all(Kind::Values, &bytes_of(own))?;
                star.answer()?
            }
        };
        Ok(logits.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}
