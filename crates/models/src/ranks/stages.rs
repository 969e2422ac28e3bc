//! What goes from one process to the next where the layers of a model are shared out over them.

use super::line::Kind;
use super::{Ranks, bytes_of, put};
use crate::ModelError;

impl Ranks {
    /// The residual stream behind the layers before this process's; the first one's stays as it is.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming the one that has ended.
    pub(crate) fn take_up(&self, rows: &mut [f32]) -> Result<(), ModelError> {
        if self.place.rank == 0 {
            return Ok(());
        }
        let before = self.star().answer()?;
        put(&before, 0, rows, |row, value| *row = value)
    }

    /// Hands `own` on, the residual stream or, on the last process, its logits; gives these on all processes.
    ///
    /// # Errors
    /// [`ModelError::Rank`] naming the one that has ended; [`ModelError::Call`] naming one that could not do its part.
    pub(crate) fn hand_on(&self, own: &[f32]) -> Result<Vec<f32>, ModelError> {
        let mut star = self.star();
        let logits = match self.place.rank {
            // All lines end here: rows go by this process from each of the others to the next.
            0 => {
                let mut rows = bytes_of(own);
                for next in 1..self.place.ranks {
                    star.tell(next, &rows)?;
                    rows = star.part(next)?;
                }
                star.tell_all(Kind::Values, &rows)?;
                rows
            }
            _ => {
                star.tell_all(Kind::Values, &bytes_of(own))?;
                star.answer()?
            }
        };
        Ok(logits.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}
