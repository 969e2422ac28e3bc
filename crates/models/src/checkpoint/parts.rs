//! Reads parameters: whole weights, or the part of one rank.

use super::{Checkpoint, Source};
use crate::ModelError;
use crate::float8::ScalesOf;
use crate::group_quant::IntegerValues;
use crate::params::{MatrixLayout, Param};
use crate::values::{ValueSource, Values};

impl Checkpoint {
    /// The values of a parameter, or of this rank's part of it.
    ///
    /// # Errors
    /// As [`Checkpoint::values`].
    pub(crate) fn param<'a>(&'a self, param: &'a Param) -> Result<Values<'a>, ModelError> {
        let (cut, values) = (param.cut.as_ref(), self.values(&param.name)?);
        let laid = self.is_laid(param).then_some(param);
        match values.of {
            ValueSource::Integers(of) if of.filled_by_part() && laid.is_none() => {
                Ok(Values { of: ValueSource::Integers(IntegerValues { cut, ..of }), ..values })
            }
            _ => Ok(Values { cut, laid, ..values }),
        }
    }

    /// Whether the files store a parameter in another order than row by row, as some checkpoints do. GGUF files never
    /// do.
    fn is_laid(&self, param: &Param) -> bool {
        param.layout != MatrixLayout::default() && !matches!(self.source, Source::Gguf(_))
    }

    /// The scales of a float8 parameter; `None` for other types.
    pub(crate) fn scales<'a>(&'a self, param: &'a Param) -> Option<ScalesOf<'a>> {
        let all = match &self.source {
            Source::Files(files) => files.scales.get(&param.name)?,
            Source::Random(drawn) => drawn.get(&param.name)?.scales()?,
            Source::Gguf(_) => return None,
        };
        Some(ScalesOf { all, cut: param.cut.as_ref() })
    }

    /// An integer parameter, or this rank's part of it; `None` for other types.
    pub(crate) fn integers_of<'a>(&'a self, param: &'a Param) -> Option<IntegerValues<'a>> {
        let layout = if self.is_laid(param) { param.layout } else { MatrixLayout::default() };
        Some(IntegerValues { cut: param.cut.as_ref(), layout, ..self.integers(&param.name)? })
    }

    /// An integer weight as stored; `None` for other types.
    pub(crate) fn integers<'a>(&'a self, name: &'a str) -> Option<IntegerValues<'a>> {
        let (of, shards) = match &self.source {
            Source::Files(files) => (files.integers.get(name)?, &files.shards[..]),
            Source::Random(drawn) => (drawn.get(name)?.integers()?, &[][..]),
            Source::Gguf(weights) => (weights.integers(name)?, &weights.shards[..]),
        };
        Some(IntegerValues {
            name,
            of,
            shards,
            cut: None,
            layout: MatrixLayout::default(),
            read: &self.read,
        })
    }
}
