//! Files of installed packages: the packages that a traceback runs through.

use super::{Entity, Form, form};
use crate::explain::modules;
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![form("site-packages/{path}", read), form("dist-packages/{path}", read)]
}

/// Named only: a frame of a traceback is a place, not a cause.
fn read(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let path = seen.word("path")?;
    let top = path.split('/').next()?;
    let module = top.split('.').next()?;
    if module.is_empty() || top.ends_with("dist-info") {
        return None;
    }
    let files = seen.context.envs.iter().flat_map(|env| &env.native_files);
    let owner = files.filter(|file| file.path.ends_with(path)).find_map(|file| file.dist.clone());
    let package = owner.unwrap_or_else(|| modules::provider(module, seen.context.envs));
    let entity = Entity::new("installed-file", package.clone()).package(package.clone());
    Some(match modules::installed(seen, &package) {
        Some((_, dist)) => {
            entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
        }
        None => entity,
    })
}
