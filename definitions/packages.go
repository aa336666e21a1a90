package definitions

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Package is a line of the manifest: a FHIR package whose condensed content is
// in this folder.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Source is where the archive came from: "npm:NAME@VERSION", a package of
	// whatever registry, which Integrity tells from others; or the base name of a file.
	Source string `json:"source"`
	// Integrity is the digest of the archive as npm writes it: "sha512-…".
	Integrity string `json:"integrity"`
	License   string `json:"license,omitempty"`
	// SHA256 is the digest of the condensed resources before compression, hex.
	SHA256 string `json:"sha256"`
	// Resources counts the condensed resources by type.
	Resources map[string]int `json:"resources"`
}

// File is the name of the condensed package in its folder.
func (p Package) File() string {
	return strings.ReplaceAll(strings.TrimPrefix(p.Name, "@"), "/", "-") + "-" + p.Version + ".ndjson.gz"
}

// core reports whether this is one of HL7's packages of R4 itself.
func (p Package) core() bool { return strings.HasPrefix(p.Name, "hl7.fhir.r4.") }

// Source says where packages come from.
type Source struct {
	Registry string       // base URL of an npm or FHIR package registry; "" is npm's, see Registry
	Client   *http.Client // http.DefaultClient when nil
	// Judge returns the files of a package that Add leaves out, by name in the archive;
	// with an error nothing is added. Nil leaves out nothing. HL7's packages of R4 itself
	// are not judged: others are judged by them.
	Judge func(ctx context.Context, a *Archive) (refused map[string]bool, err error)
}

// Size limits of a package, in bytes and files; they stop an archive that was made to
// exhaust memory or disk.
const (
	maxArchive  = 512 << 20
	maxEntries  = 200_000
	maxMetadata = 32 << 20
)

const manifestFile = "packages.json"

// Add fetches the package spec (NAME@VERSION, or the path of a .tgz file),
// checks its digest, condenses it and records it in the folder dir. Another
// version of the same package is replaced. Nothing is written unless all of the
// package could be read. It fails when that version is there already.
//
// Nothing in the archive chooses a path: names are checked against npm's rules
// and the content of the archive is only read.
func (s Source) Add(ctx context.Context, dir, spec string) (Package, error) {
	// 1. The archive, with the digest it must have.
	archive, p, err := s.archive(ctx, spec)
	if err != nil {
		return p, err
	}

	// 2. Its usable definitions.
	var refused map[string]bool
	if s.Judge != nil {
		a, err := readArchive(archive, added)
		if err != nil {
			return p, err
		}
		if !(Package{Name: a.Name}).core() {
			if refused, err = s.Judge(ctx, a); err != nil {
				return p, err
			}
			for _, problem := range a.Problems {
				refused[problem.File] = true
			}
		}
	}

	// 3. Its content, condensed.
	packed, err := condenseArchive(archive, &p, refused)
	if err != nil {
		return p, err
	}

	// 4. The folder.
	list, err := List(os.DirFS(dir))
	if err != nil {
		return p, err
	}
	var replaced []string
	for _, q := range list {
		if q.Name != p.Name {
			continue
		}
		if q.Version == p.Version {
			return p, fmt.Errorf("%s@%s is there already", p.Name, p.Version)
		}
		replaced = append(replaced, q.File())
	}
	list = slices.DeleteFunc(list, func(q Package) bool { return q.Name == p.Name })
	if err := writeFile(dir, p.File(), packed); err != nil {
		return p, err
	}
	if err := writeManifest(dir, append(list, p)); err != nil {
		return p, err
	}
	for _, f := range replaced {
		if err := os.Remove(filepath.Join(dir, f)); err != nil {
			return p, err
		}
	}
	return p, nil
}

// List returns the packages in a folder, sorted by name.
func List(dir fs.FS) ([]Package, error) {
	b, err := fs.ReadFile(dir, manifestFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Package
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestFile, err)
	}
	for _, p := range list {
		if !namePattern.MatchString(p.Name) || !versionPattern.MatchString(p.Version) {
			return nil, fmt.Errorf("%s: bad package name %q", manifestFile, p.Name+"@"+p.Version)
		}
	}
	return list, nil
}

// Remove deletes the package spec (NAME or NAME@VERSION) from the folder dir and returns
// its description.
func Remove(dir, spec string) (Package, error) {
	list, err := List(os.DirFS(dir))
	if err != nil {
		return Package{}, err
	}
	for i, p := range list {
		if spec != p.Name && spec != p.Name+"@"+p.Version {
			continue
		}
		if p.core() {
			return p, fmt.Errorf("%s holds R4 itself: the server cannot be generated without it", p.Name)
		}
		if err := writeManifest(dir, slices.Delete(list, i, i+1)); err != nil {
			return p, err
		}
		if err := os.Remove(filepath.Join(dir, p.File())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return p, err
		}
		return p, nil
	}
	return Package{}, fmt.Errorf("no package %q; there are: %s", spec, names(list))
}

func names(list []Package) string {
	var b []string
	for _, p := range list {
		b = append(b, p.Name+"@"+p.Version)
	}
	return cmp.Or(strings.Join(b, ", "), "none")
}

var (
	// npm: lower case, URL-safe, perhaps in a scope.
	namePattern    = regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*$`)
	versionPattern = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]{0,63}$`)
)

func cutVersion(spec string) (name, version string, ok bool) {
	i := strings.LastIndexByte(spec, '@')
	if i <= 0 {
		return "", "", false
	}
	name, version = spec[:i], spec[i+1:]
	return name, version, namePattern.MatchString(name) && versionPattern.MatchString(version)
}

// Fetch returns the .tgz of the package spec (NAME@VERSION, or the path of a .tgz
// file). The digest of one from the registry is checked.
func (s Source) Fetch(ctx context.Context, spec string) ([]byte, error) {
	archive, _, err := s.archive(ctx, spec)
	return archive, err
}

// archive returns the .tgz that spec names with its description.
func (s Source) archive(ctx context.Context, spec string) ([]byte, Package, error) {
	if strings.HasSuffix(spec, ".tgz") || strings.HasSuffix(spec, ".tar.gz") {
		f, err := os.Open(spec)
		if err != nil {
			return nil, Package{}, err
		}
		defer f.Close()
		b, err := readAll(f, maxArchive)
		if err != nil {
			return nil, Package{}, fmt.Errorf("read %s: %w", filepath.Base(spec), err)
		}
		return b, Package{Source: filepath.Base(spec), Integrity: integrity(b)}, nil
	}
	name, version, ok := cutVersion(spec)
	if !ok {
		return nil, Package{}, fmt.Errorf("%q is neither NAME@VERSION nor a .tgz file", spec)
	}
	return s.fetch(ctx, name, version)
}

// AddExamples writes the example resources of a package, everything that Add
// leaves out, to examples/examples.ndjson.gz in dir, and returns how many. Those
// larger than a megabyte are left out.
func (s Source) AddExamples(ctx context.Context, dir, spec string) (int, error) {
	archive, _, err := s.archive(ctx, spec)
	if err != nil {
		return 0, err
	}
	var lines []string
	err = eachFile(archive, added, func(name string, body []byte) error {
		var head struct{ ResourceType string }
		if path.Dir(name) != "package" || json.Unmarshal(body, &head) != nil || head.ResourceType == "" || kept[head.ResourceType] && !slices.Contains(guides, head.ResourceType) {
			return nil
		}
		var line bytes.Buffer
		if err := json.Compact(&line, body); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if line.Len() <= 1<<20 {
			lines = append(lines, line.String())
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	slices.Sort(lines)
	b, err := compress([]byte(strings.Join(lines, "\n") + "\n"))
	if err != nil {
		return 0, err
	}
	return len(lines), writeFile(filepath.Join(dir, "examples"), "examples.ndjson.gz", b)
}

// fetch downloads a package and checks its digest.
func (s Source) fetch(ctx context.Context, name, version string) ([]byte, Package, error) {
	base := s.Registry
	if base == "" {
		var err error
		if base, err = Registry(ctx); err != nil {
			return nil, Package{}, err
		}
	}
	base = strings.TrimRight(base, "/")
	meta, err := s.get(ctx, base+"/"+url.PathEscape(name), maxMetadata)
	if err != nil {
		return nil, Package{}, err
	}
	var doc struct {
		Versions map[string]struct {
			License any `json:"license"`
			Dist    struct {
				Tarball   string `json:"tarball"`
				Integrity string `json:"integrity"`
				Shasum    string `json:"shasum"`
			} `json:"dist"`
		} `json:"versions"`
	}
	if err := json.Unmarshal(meta, &doc); err != nil {
		return nil, Package{}, fmt.Errorf("registry's answer for %s: %w", name, err)
	}
	v, ok := doc.Versions[version]
	if !ok {
		return nil, Package{}, fmt.Errorf("the registry has no version %s of %s", version, name)
	}
	tarball := cmp.Or(v.Dist.Tarball, base+"/"+url.PathEscape(name)+"/"+version)
	archive, err := s.get(ctx, tarball, maxArchive)
	if err != nil {
		return nil, Package{}, err
	}
	if err := checkDigest(archive, v.Dist.Integrity, v.Dist.Shasum); err != nil {
		return nil, Package{}, fmt.Errorf("%s@%s: %w", name, version, err)
	}
	return archive, Package{Name: name, Version: version, Source: "npm:" + name + "@" + version, Integrity: integrity(archive)}, nil
}

func (s Source) get(ctx context.Context, url string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	b, err := readAll(resp.Body, limit)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	return b, nil
}

// checkDigest compares the archive with the registry's digest: npm's integrity, or else the
// SHA-1 of FHIR registries. A registry that gives neither is not trusted.
func checkDigest(archive []byte, want, shasum string) error {
	switch {
	case want != "":
		for w := range strings.FieldsSeq(want) {
			if strings.HasPrefix(w, "sha512-") {
				if got := integrity(archive); got != w {
					return fmt.Errorf("digest is %s, the registry says %s", got, w)
				}
				return nil
			}
		}
		return fmt.Errorf("the registry gives no sha512 digest but %q", want)
	case shasum != "":
		sum := sha1.Sum(archive)
		if got := hex.EncodeToString(sum[:]); !strings.EqualFold(got, shasum) {
			return fmt.Errorf("SHA-1 is %s, the registry says %s", got, shasum)
		}
		return nil
	}
	return errors.New("the registry gives no digest")
}

func integrity(archive []byte) string {
	sum := sha512.Sum512(archive)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// condenseArchive returns the condensed resources of a package, gzipped, one a
// line, sorted by type and id, and completes p. Refused files are left out.
func condenseArchive(archive []byte, p *Package, refused map[string]bool) ([]byte, error) {
	var manifest []byte
	lines := map[string][]byte{} // type/id -> resource
	defined := map[canonicalKey]File{}
	p.Resources = map[string]int{}
	var wrongGuide error
	err := eachFile(archive, added, func(name string, body []byte) error {
		if name == "package/package.json" {
			manifest = body
			return nil
		}
		// Resources lie in package/; examples, openapi and so on below it.
		if path.Dir(name) != "package" || path.Ext(name) != ".json" || path.Base(name) == ".index.json" || refused[name] {
			return nil
		}
		var head struct{ ResourceType, ID, URL, Version string }
		if json.Unmarshal(body, &head) != nil || !kept[head.ResourceType] {
			return nil
		}
		b, err := Condense(body)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		key := head.ResourceType + "/" + head.ID
		guide := slices.Contains(guides, head.ResourceType)
		if _, ok := lines[key]; ok {
			err := fmt.Errorf("%s: %s is in the package twice", name, key)
			if guide { // R4 itself has such ones, and leaves them out
				wrongGuide = cmp.Or(wrongGuide, err)
				return nil
			}
			return err
		}
		if url := (canonicalKey{head.ResourceType, head.URL, head.Version}); head.URL != "" {
			f := File{Name: name, Type: head.ResourceType, ID: head.ID}
			// R4 itself has one under an older name too.
			if other, ok := defined[url]; ok && other.named() == f.named() && !guide {
				return fmt.Errorf("%s and %s both define %s", other.Name, name, url)
			}
			defined[url] = f
		}
		lines[key] = b
		p.Resources[head.ResourceType]++
		return nil
	})
	if err != nil {
		return nil, err
	}
	var a Archive
	if err := a.describe(manifest); err != nil {
		return nil, err
	}
	if p.Name == "" {
		p.Name, p.Version = a.Name, a.Version
	}
	if a.Name != p.Name || a.Version != p.Version {
		return nil, fmt.Errorf("asked for %s@%s, the archive is %s@%s", p.Name, p.Version, a.Name, a.Version)
	}
	if p.core() {
		maps.DeleteFunc(lines, func(key string, _ []byte) bool {
			typ, _, _ := strings.Cut(key, "/")
			return slices.Contains(guides, typ)
		})
		for _, typ := range guides {
			delete(p.Resources, typ)
		}
	} else if wrongGuide != nil {
		return nil, wrongGuide
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%s@%s has no definitions", p.Name, p.Version)
	}
	p.License = a.License

	keys := make([]string, 0, len(lines))
	for k := range lines {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var plain bytes.Buffer
	for _, k := range keys {
		plain.Write(lines[k])
		plain.WriteByte('\n')
	}
	sum := sha256.Sum256(plain.Bytes())
	p.SHA256 = hex.EncodeToString(sum[:])
	return compress(plain.Bytes())
}

// chunkSize is about how many bytes of resources share a gzip member: reading one
// definition decompresses one member.
const chunkSize = 256 << 10

// compress gzips lines into members of about chunkSize, without name or time, so
// that the same input gives the same bytes.
func compress(b []byte) ([]byte, error) {
	var out bytes.Buffer
	for len(b) > 0 {
		n := min(chunkSize, len(b))
		if i := bytes.IndexByte(b[n:], '\n'); i >= 0 {
			n += i + 1
		} else {
			n = len(b)
		}
		w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(b[:n]); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		b = b[n:]
	}
	return out.Bytes(), nil
}

// readAll reads to the end and fails beyond limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	return b, nil
}

func writeManifest(dir string, list []Package) error {
	slices.SortFunc(list, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	if list == nil {
		list = []Package{}
	}
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(dir, manifestFile, append(b, '\n'))
}

// writeFile replaces a file in one step.
func writeFile(dir, name string, b []byte) error {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(b); err != nil {
		f.Close()
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}
