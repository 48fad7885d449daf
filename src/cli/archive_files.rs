//! The files of an archive: one of JSON lines per table, and the manifest with their digests.
//!
//! The manifest is written last: a folder without one holds no complete archive.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::exit::{CommandFailure, Exit};
use crate::db::summed_columns;
use crate::domain::{ArchiveDigest, ArchiveTable, TableContents};

/// The name of the manifest.
pub const MANIFEST: &str = "manifest.json";

/// The version of the format of manifest and files.
const FORMAT: u32 = 1;

/// What an archive consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    pub sale_id: String,
    /// In the order of [`ArchiveTable::ALL`].
    pub tables: Vec<ArchivedFile>,
}

/// One file of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedFile {
    /// Table, rows and sums.
    #[serde(flatten)]
    pub contents: TableContents,
    pub bytes: u64,
    /// In hexadecimal digits.
    pub sha256: String,
}

/// The name of a table's file.
pub fn file_name(table: ArchiveTable) -> String {
    format!("{}.ndjson", table.name())
}

/// Writes the file of a table.
pub struct TableWriter {
    file: BufWriter<File>,
    contents: TableContents,
    sums: BTreeMap<&'static str, i128>,
    hash: Sha256,
    bytes: u64,
}

impl TableWriter {
    /// Begins an empty file.
    pub fn create(folder: &Path, table: ArchiveTable) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::new(create(&folder.join(file_name(table)))?),
            contents: TableContents { table, rows: 0, sums: BTreeMap::new() },
            sums: summed_columns(table).iter().map(|name| (*name, 0)).collect(),
            hash: Sha256::new(),
            bytes: 0,
        })
    }

    pub fn write(&mut self, row: &Json) -> io::Result<()> {
        let mut line = row.to_string();
        line.push('\n');
        self.file.write_all(line.as_bytes())?;
        self.hash.update(line.as_bytes());
        self.bytes += line.len() as u64;
        self.contents.rows += 1;
        for (name, sum) in &mut self.sums {
            *sum += i128::from(row.get(*name).and_then(Json::as_i64).unwrap_or(0));
        }
        Ok(())
    }

    /// Ends the file; it is on the disk then.
    pub fn finish(mut self) -> io::Result<ArchivedFile> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        let sums = self.sums.into_iter().map(|(name, sum)| (name.to_owned(), sum.to_string()));
        Ok(ArchivedFile {
            contents: TableContents { sums: sums.collect(), ..self.contents },
            bytes: self.bytes,
            sha256: hex(self.hash),
        })
    }
}

impl Manifest {
    pub fn new(sale_id: &str, tables: Vec<ArchivedFile>) -> Self {
        Self { format: FORMAT, sale_id: sale_id.to_owned(), tables }
    }

    /// Writes the manifest, whose files are on the disk; returns its digest. A crash leaves the
    /// whole manifest, or none.
    pub fn write(&self, folder: &Path) -> anyhow::Result<ArchiveDigest> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        replace(&folder.join(MANIFEST), text.as_bytes(), create)?;
        Ok(ArchiveDigest(Sha256::digest(text.as_bytes()).into()))
    }

    /// The manifest of a folder; `None`: it has none.
    pub fn read(folder: &Path) -> Result<Option<(Self, ArchiveDigest)>, CommandFailure> {
        let path = folder.join(MANIFEST);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| not_readable(&path, &error))?,
        };
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| not_readable(&path, &error))?;
        if manifest.format != FORMAT {
            return Err(not_readable(&path, &format!("it has format {}", manifest.format)));
        }
        Ok(Some((manifest, ArchiveDigest(Sha256::digest(&text).into()))))
    }

    /// Compares every file with the manifest.
    pub fn verify(&self, folder: &Path) -> Result<(), CommandFailure> {
        for ArchivedFile { contents, sha256, .. } in &self.tables {
            let path = folder.join(file_name(contents.table));
            let found = digest_and_rows(&path).map_err(|error| not_readable(&path, &error))?;
            if found != (sha256.clone(), contents.rows) {
                let problem = format!("{} is not the file that was archived", path.display());
                let remedy = "restore it from its copy; the sale was not changed";
                return Err(CommandFailure::new(Exit::Negative, problem, remedy));
            }
        }
        Ok(())
    }

    /// Rows and sums of every table.
    pub fn contents(&self) -> Vec<&TableContents> {
        self.tables.iter().map(|file| &file.contents).collect()
    }
}

/// Writes a file beside its place and moves it there: its readers find it whole, or the one before.
pub fn replace(
    path: &Path,
    text: &[u8],
    create: impl FnOnce(&Path) -> io::Result<File>,
) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    let mut file = create(Path::new(&unfinished))?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Creates an empty file that only this user may read, as the ledger.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // A file of an earlier archive has its own mode.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

fn not_readable(path: &Path, error: &dyn std::fmt::Display) -> CommandFailure {
    let problem = format!("cannot read {}: {error}", path.display());
    CommandFailure::unclear(problem, "name the folder of a complete archive")
}

fn hex(hash: Sha256) -> String {
    ArchiveDigest(hash.finalize().into()).to_string()
}

/// The digest of a file, and the number of its lines.
fn digest_and_rows(path: &Path) -> io::Result<(String, u64)> {
    let mut file = BufReader::new(File::open(path)?);
    let (mut hash, mut rows) = (Sha256::new(), 0);
    loop {
        let part = file.fill_buf()?;
        if part.is_empty() {
            return Ok((hex(hash), rows));
        }
        hash.update(part);
        rows += part.split(|byte| *byte == b'\n').count() as u64 - 1;
        let len = part.len();
        file.consume(len);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_archive_is_verified_against_its_manifest() {
        let folder = tempfile::tempdir().unwrap();
        // Of an earlier archive.
        fs::write(folder.path().join("orders.ndjson"), "").unwrap();
        let mut file = TableWriter::create(folder.path(), ArchiveTable::Orders).unwrap();
        for amount in [5, 7] {
            file.write(&json!({"amount": amount, "buyer_id": "1"})).unwrap();
        }
        let file = file.finish().unwrap();
        assert_eq!((file.contents.rows, file.bytes), (2, 56));
        assert_eq!(file.contents.sums["amount"], "12");
        assert!(Manifest::read(folder.path()).unwrap().is_none());

        let manifest = Manifest::new("spring", vec![file]);
        let digest = manifest.write(folder.path()).unwrap();
        let (read, same) = Manifest::read(folder.path()).unwrap().unwrap();
        assert_eq!((&read, same), (&manifest, digest));
        read.verify(folder.path()).unwrap();

        let path = folder.path().join("orders.ndjson");
        for file in [&path, &folder.path().join(MANIFEST)] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let damaged = fs::read_to_string(&path).unwrap().replace('7', "8");
        fs::write(&path, damaged).unwrap();
        assert!(read.verify(folder.path()).unwrap_err().problem.contains("orders.ndjson"));
        fs::write(folder.path().join(MANIFEST), "{").unwrap();
        assert!(Manifest::read(folder.path()).is_err());
    }
}
