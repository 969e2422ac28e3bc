//! The local signing key: PKCS #8 in PEM, readable only by its owner, and the public key next to it for verifiers.

use crate::failure::Failure;
use anyhow::Context;
use ed25519_compact::{KeyPair, PublicKey, SecretKey, Seed};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// The default key file: below XDG_CONFIG_HOME, or else below ~/.config.
pub(crate) fn signing_key_file(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let folder = folder.ok_or_else(|| {
        let what =
            "there is no folder for the signing key: neither XDG_CONFIG_HOME nor HOME is set";
        Failure::hinted(
            what,
            "name the key's file: --signing-key FILE, or --public-key FILE for `gate`",
        )
    })?;
    Ok(folder.join("firstlight/signing-key.pem"))
}

/// The file of a signing key's public half: `key.pem` has `key.pub.pem`.
pub(crate) fn public_key_file(signing_key: &Path) -> PathBuf {
    signing_key.with_extension("pub.pem")
}

/// The key in a file. If the file does not exist, a new key is generated and written with its public half.
pub(super) fn load_or_create(path: &Path) -> anyhow::Result<KeyPair> {
    let name = || path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let secret = SecretKey::from_pem(&text).map_err(|_| no_key(path, "private"))?;
            return Ok(KeyPair { pk: secret.public_key(), sk: secret });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(name),
    }
    let mut seed = [0; Seed::BYTES];
    let mut random = std::fs::File::open("/dev/urandom").context("/dev/urandom")?;
    random.read_exact(&mut seed).context("/dev/urandom")?;
    let pair = KeyPair::from_seed(Seed::new(seed));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).with_context(name)?;
    file.write_all(pair.sk.to_pem().as_bytes()).with_context(name)?;
    let public = public_key_file(path);
    std::fs::write(&public, pair.pk.to_pem()).with_context(|| public.display().to_string())?;
    Ok(pair)
}

/// A public key in PEM.
pub(super) fn load_public(path: &Path) -> anyhow::Result<PublicKey> {
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::hinted(
            format!("there is no public key {}", path.display()),
            "`firstlight check --certificate` writes it next to its signing key; copy it here, or name it with --public-key FILE",
        ),
        _ => anyhow::Error::from(error).context(path.display().to_string()),
    })?;
    PublicKey::from_pem(&text).map_err(|_| no_key(path, "public"))
}

fn no_key(path: &Path, which: &str) -> anyhow::Error {
    let what = format!("{} is not an Ed25519 {which} key in PEM format", path.display());
    let hint = match which {
        "public" => "name the file NAME.pub.pem of the signing key",
        _ => "name another file; if it does not exist, a key is generated",
    };
    Failure::hinted(what, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_created_once_and_reused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/key.pem");
        let made = load_or_create(&path).unwrap();
        let read = load_or_create(&path).unwrap();
        assert_eq!(made.pk, read.pk);
        assert_eq!(load_public(&public_key_file(&path)).unwrap(), made.pk);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "others may read the key");
        }
        std::fs::write(&path, "no key").unwrap();
        let error = load_or_create(&path).unwrap_err();
        assert!(error.to_string().contains("is not an Ed25519 private key"), "{error}");
        let absent = load_public(&folder.path().join("absent.pem")).unwrap_err();
        assert!(absent.to_string().contains("there is no public key"), "{absent}");
    }
}
