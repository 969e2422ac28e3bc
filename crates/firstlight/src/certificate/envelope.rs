//! DSSE envelopes in Sigstore bundles, signed by Ed25519.

use ct_codecs::{Base64, Decoder, Encoder};
use ed25519_compact::{KeyPair, PublicKey, Signature};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// What DSSE signs: the type and the payload, each after its length.
fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head =
        format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    [head.as_slice(), payload].concat()
}

fn base64(bytes: &[u8]) -> String {
    // It fails only for lengths close to the size of the address space.
    Base64::encode_to_string(bytes).unwrap_or_default()
}

/// The key's name in a bundle: the SHA-256 of its DER encoding.
fn hint(key: &PublicKey) -> String {
    base64(&Sha256::digest(key.to_der()))
}

/// The bundle of a payload.
pub(super) fn sign(payload: &[u8], key: &KeyPair) -> Value {
    // Without noise, equal statements have equal signatures, as RFC 8032 specifies.
    let signature = key.sk.sign(pre_authentication_encoding(PAYLOAD_TYPE, payload), None);
    json!({
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": { "publicKey": { "hint": hint(&key.pk) } },
        "dsseEnvelope": {
            "payload": base64(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{ "sig": base64(signature.as_ref()), "keyid": "" }],
        },
    })
}

/// The payload of a bundle whose signature is by this key, as JSON.
pub(super) fn open(bundle: &Value, key: &PublicKey) -> Result<Value, String> {
    let envelope = &bundle["dsseEnvelope"];
    if envelope["payloadType"] != PAYLOAD_TYPE {
        return Err(format!(
            "it has no in-toto statement: its payloadType is {}",
            envelope["payloadType"]
        ));
    }
    let decoded = |value: &Value, what: &str| {
        let text = value.as_str().ok_or_else(|| format!("it has no {what}"))?;
        Base64::decode_to_vec(text, None).map_err(|_| format!("its {what} is not Base64"))
    };
    let payload = decoded(&envelope["payload"], "payload")?;
    let signed = pre_authentication_encoding(PAYLOAD_TYPE, &payload);
    let signatures = envelope["signatures"].as_array().map_or(&[][..], Vec::as_slice);
    for signature in signatures {
        let bytes = decoded(&signature["sig"], "signature")?;
        let is_valid = Signature::from_slice(&bytes)
            .is_ok_and(|signature| key.verify(&signed, &signature).is_ok());
        if is_valid {
            return serde_json::from_slice(&payload)
                .map_err(|problem| format!("its statement is not JSON: {problem}"));
        }
    }
    Err(format!("none of its signatures is by the key {}", hint(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_compact::Seed;

    fn pair(byte: u8) -> KeyPair {
        KeyPair::from_seed(Seed::new([byte; 32]))
    }

    #[test]
    fn the_signed_bytes_are_those_of_the_dsse_specification() {
        // https://github.com/secure-systems-lab/dsse/blob/master/protocol.md, "Test Vectors".
        let encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world");
        assert_eq!(encoded, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn signatures_are_those_of_rfc_8032() {
        // Section 7.1, test 2.
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len() / 2)
                .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
                .collect()
        };
        let seed = hex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb");
        let pair = KeyPair::from_seed(Seed::from_slice(&seed).unwrap());
        assert_eq!(
            pair.pk.to_vec(),
            hex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
        );
        assert_eq!(
            pair.sk.sign([0x72], None).to_vec(),
            hex(
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            )
        );
    }

    #[test]
    fn rejects_envelopes_of_another_key() {
        let bundle = sign(br#"{"a":1}"#, &pair(1));
        assert_eq!(open(&bundle, &pair(1).pk), Ok(json!({"a": 1})));
        let error = open(&bundle, &pair(2).pk).unwrap_err();
        assert!(error.starts_with("none of its signatures is by the key "), "{error}");
        let mut changed = bundle.clone();
        changed["dsseEnvelope"]["payload"] = json!(base64(br#"{"a":2}"#));
        assert!(open(&changed, &pair(1).pk).unwrap_err().starts_with("none of its signatures"));
        let mut changed = bundle.clone();
        changed["dsseEnvelope"]["signatures"] = json!([]);
        assert!(open(&changed, &pair(1).pk).is_err());
        let mut changed = bundle;
        changed["dsseEnvelope"]["payloadType"] = json!("text/plain");
        assert!(open(&changed, &pair(1).pk).unwrap_err().contains("text/plain"));
        assert!(open(&json!(3), &pair(1).pk).is_err());
    }
}
