//! Makes the lab's OCI archives: an image of four layers and a pause image.
//!
//! Everything in them is fixed but the busybox they are made of, so the same
//! digests come out of each build.

use std::io::Write;

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use sha2::{Digest, Sha256};

/// The image's name.
pub const APP: &str = "docker.io/library/lab:1";
/// The pause image named in containerd's configuration.
pub const PAUSE: &str = "docker.io/library/pause:lab";

const BOX_LINKS: [&str; 10] = [
    "sh", "ls", "cat", "sleep", "echo", "md5sum", "true", "id", "touch", "dd",
];

enum Entry<'a> {
    Dir,
    Link(&'a str),
    File(&'a [u8], u32),
}

/// The application image. Its third layer is 2 MB, so that a re-pull would show.
pub fn app(busybox: &[u8]) -> Result<Vec<u8>> {
    let blob: Vec<u8> = Sha256::digest(b"lab").repeat(65536);
    let layers = [
        base_layer(busybox)?,
        layer(&[("etc/motd", Entry::File(b"hello from layer 2\n", 0o644))])?,
        layer(&[
            ("data", Entry::Dir),
            ("data/blob", Entry::File(&blob, 0o644)),
        ])?,
        layer(&[("etc/layer4", Entry::File(b"four\n", 0o644))])?,
    ];
    archive(
        APP,
        &layers,
        &[
            "/bin/sh",
            "-c",
            "cat /etc/motd /etc/layer4; md5sum /data/blob",
        ],
    )
}

/// The pause image: one layer, sleeps.
pub fn pause(busybox: &[u8]) -> Result<Vec<u8>> {
    archive(PAUSE, &[base_layer(busybox)?], &["/bin/sleep", "1000000"])
}

fn base_layer(busybox: &[u8]) -> Result<Vec<u8>> {
    let mut entries = vec![
        ("bin", Entry::Dir),
        ("bin/busybox", Entry::File(busybox, 0o755)),
    ];
    entries.extend(["tmp", "etc", "proc", "sys", "dev"].map(|name| (name, Entry::Dir)));
    let links = BOX_LINKS.map(|name| format!("bin/{name}"));
    entries.extend(
        links
            .iter()
            .map(|name| (name.as_str(), Entry::Link("busybox"))),
    );
    layer(&entries)
}

fn layer(entries: &[(&str, Entry)]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, entry) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        let data: &[u8] = match entry {
            Entry::Dir => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                &[]
            }
            Entry::Link(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                header.set_link_name(target)?;
                &[]
            }
            Entry::File(data, mode) => {
                header.set_mode(*mode);
                data
            }
        };
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data)?;
    }
    Ok(tar.into_inner()?)
}

fn archive(name: &str, layers: &[Vec<u8>], command: &[&str]) -> Result<Vec<u8>> {
    let mut blobs = Vec::new();
    let mut add = |kind: &str, bytes: Vec<u8>| {
        let descriptor = json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": digest(&bytes),
            "size": bytes.len(),
        });
        blobs.push(bytes);
        descriptor
    };
    let mut descriptors = Vec::new();
    for layer in layers {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(layer)?;
        descriptors.push(add("layer.v1.tar+gzip", gzip.finish()?));
    }
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": { "Cmd": command, "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|l| digest(l)).collect::<Vec<_>>() },
    });
    let config = add("config.v1+json", config.to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": descriptors,
    });
    let mut manifest = add("manifest.v1+json", manifest.to_string().into_bytes());
    manifest["annotations"] = json!({ "io.containerd.image.name": name });
    manifest["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });

    let mut tar = tar::Builder::new(Vec::new());
    let mut put = |name: &str, data: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data)
    };
    put("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    put("index.json", index.to_string().as_bytes())?;
    for blob in &blobs {
        put(
            &format!("blobs/sha256/{}", &digest(blob)["sha256:".len()..]),
            blob,
        )?;
    }
    Ok(tar.into_inner()?)
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// The image specification's (Go's) name of the architecture.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn an_archive_is_whole_and_the_same_each_time() {
        let made = app(b"busybox").unwrap();
        assert_eq!(made, app(b"busybox").unwrap());
        let mut names = Vec::new();
        for entry in tar::Archive::new(&made[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            if let Some(hex) = name.strip_prefix("blobs/sha256/") {
                assert_eq!(digest(&data), format!("sha256:{hex}"));
            }
            names.push(name);
        }
        assert_eq!(names[..2], ["oci-layout", "index.json"]);
        assert_eq!(
            names.len(),
            2 + 4 + 2,
            "four layers, a config and a manifest"
        );
    }
}
