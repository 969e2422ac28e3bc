//! Parameters of a model: of the whole of a weight, or of what a rank has of it.

use super::{Checkpoint, Source};
use crate::ModelError;
use crate::float8::ScalesOf;
use crate::integers::IntegerValues;
use crate::params::{Lie, Param};
use crate::values::{Of, Values};

impl Checkpoint {
    /// The values of a parameter: of a rank's, those that are its own.
    ///
    /// # Errors
    /// As [`Checkpoint::values`].
    pub(crate) fn param<'a>(&'a self, param: &'a Param) -> Result<Values<'a>, ModelError> {
        let (cut, values) = (param.cut.as_ref(), self.values(&param.name)?);
        let laid = self.is_laid(param).then_some(param);
        match values.of {
            Of::Integers(of) if of.filled_by_part() && laid.is_none() => {
                Ok(Values { of: Of::Integers(IntegerValues { cut, ..of }), ..values })
            }
            _ => Ok(Values { cut, laid, ..values }),
        }
    }

    /// Whether the files lay a parameter as checkpoints do, where that is otherwise than row by row: GGUF files do not.
    fn is_laid(&self, param: &Param) -> bool {
        param.lie != Lie::default() && !matches!(self.source, Source::Gguf(_))
    }

    /// The scales of a parameter in float8; none of one in another type.
    pub(crate) fn scales<'a>(&'a self, param: &'a Param) -> Option<ScalesOf<'a>> {
        let all = match &self.source {
            Source::Files(files) => files.scales.get(&param.name)?,
            Source::Drawn(drawn) => drawn.get(&param.name)?.scales()?,
            Source::Gguf(_) => return None,
        };
        Some(ScalesOf { all, cut: param.cut.as_ref() })
    }

    /// A parameter in integers: of a rank's, those that are its own; none of one in another type.
    pub(crate) fn integers_of<'a>(&'a self, param: &'a Param) -> Option<IntegerValues<'a>> {
        let lie = if self.is_laid(param) { param.lie } else { Lie::default() };
        Some(IntegerValues { cut: param.cut.as_ref(), lie, ..self.integers(&param.name)? })
    }

    /// A weight in integers as it lies; none of one in another type.
    pub(crate) fn integers<'a>(&'a self, name: &'a str) -> Option<IntegerValues<'a>> {
        let (of, shards) = match &self.source {
            Source::Files(files) => (files.integers.get(name)?, &files.shards[..]),
            Source::Drawn(drawn) => (drawn.get(name)?.integers()?, &[][..]),
            Source::Gguf(weights) => (weights.integers(name)?, &weights.shards[..]),
        };
        Some(IntegerValues { name, of, shards, cut: None, lie: Lie::default(), read: &self.read })
    }
}
