package definitions

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Archive is a FHIR package as it is published, read for a running server:
// nothing of it is condensed.
type Archive struct {
	Name, Version string
	Integrity     string // digest of the archive as npm writes it, "sha512-…"
	License       string
	Files         []File // by resource type and URL
	// Problems are files that are not taken, with the reason.
	Problems []Problem
}

// Problem is why a file of an Archive is not among its Files.
type Problem struct{ File, Reason string }

// File is one definition of an Archive.
type File struct {
	Name     string // in the archive: package/SearchParameter-x.json
	Type, ID string
	URL      string // canonical
	Version  string // business version
	Body     []byte
}

// installed are the resource types that an Archive is read for: resources with a canonical
// URL that define the meaning of others.
var installed = map[string]bool{
	"ActivityDefinition": true, "CapabilityStatement": true, "CodeSystem": true, "CompartmentDefinition": true,
	"ConceptMap": true, "GraphDefinition": true, "ImplementationGuide": true, "Library": true, "Measure": true,
	"MessageDefinition": true, "OperationDefinition": true, "PlanDefinition": true,
	"Questionnaire": true, "SearchParameter": true, "StructureDefinition": true, "StructureMap": true,
	"TerminologyCapabilities": true, "ValueSet": true,
}

// limits bound the unpacked size of an archive and of one file, in bytes.
type limits struct{ all, file int64 }

var (
	// atRunTime is for a running server, which holds the archive in memory; added for
	// the program that puts packages into the source tree.
	atRunTime = limits{512 << 20, 64 << 20}
	added     = limits{4 << 30, 128 << 20}
)

// canonicalKey is what two definitions must not have in common.
type canonicalKey struct{ typ, url, version string }

func (c canonicalKey) String() string {
	if c.version == "" {
		return c.typ + " " + c.url
	}
	return c.typ + " " + c.url + "|" + c.version
}

// ReadArchive reads a .tgz of a FHIR package: the definitions in its folder
// package. want is the digest that it must have ("sha512-…", in base64), or "" when
// nobody said. An archive with a path that leads out of it, with links in place of
// definitions or for another FHIR version is refused as a whole. Of two definitions of
// one type, URL and version the second is a Problem, like a file that is no JSON.
func ReadArchive(archive []byte, want string) (*Archive, error) {
	if got := integrity(archive); want != "" && want != got {
		return nil, fmt.Errorf("digest is %s, expected %s", got, want)
	}
	return readArchive(archive, atRunTime)
}

// readArchive reads an archive within limits.
func readArchive(archive []byte, most limits) (*Archive, error) {
	a := &Archive{Integrity: integrity(archive)}
	var manifest []byte
	err := eachFile(archive, most, func(name string, body []byte) error {
		switch {
		case name == "package/package.json":
			manifest = body
		case path.Dir(name) == "package" && path.Ext(name) == ".json" && path.Base(name) != ".index.json":
			f := File{Name: name, Body: body}
			var head struct{ ResourceType, ID, URL, Version string }
			if err := json.Unmarshal(body, &head); err != nil {
				a.Problems = append(a.Problems, Problem{name, "it is no JSON of a resource: " + err.Error()})
				return nil
			}
			if f.Type, f.ID, f.URL, f.Version = head.ResourceType, head.ID, head.URL, head.Version; installed[f.Type] && f.URL != "" {
				a.Files = append(a.Files, f)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := a.describe(manifest); err != nil {
		return nil, err
	}
	slices.SortFunc(a.Files, func(x, y File) int {
		return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.URL, y.URL), cmp.Compare(x.Version, y.Version), cmp.Compare(x.Name, y.Name))
	})
	for i := 1; i < len(a.Files); i++ {
		f, g := a.Files[i-1], a.Files[i]
		if f.Type != g.Type || f.URL != g.URL || f.Version != g.Version {
			continue
		}
		switch { // R4 itself has one under an older name too
		case f.named() && !g.named():
			a.Files = slices.Delete(a.Files, i, i+1)
		case g.named() && !f.named():
			a.Files = slices.Delete(a.Files, i-1, i)
		default:
			a.Problems = append(a.Problems, Problem{g.Name, fmt.Sprintf("%s and %s both define %s", f.Name, g.Name, canonicalKey{f.Type, f.URL, f.Version})})
			a.Files = slices.Delete(a.Files, i, i+1)
		}
		i--
	}
	if len(a.Files) == 0 {
		return nil, fmt.Errorf("%s@%s has no definitions", a.Name, a.Version)
	}
	return a, nil
}

// named reports whether a file has the name that packages give it.
func (f File) named() bool { return path.Base(f.Name) == f.Type+"-"+f.ID+".json" }

// describe takes what package.json says.
func (a *Archive) describe(manifest []byte) error {
	if manifest == nil {
		return errors.New("it has no package/package.json: this is no FHIR package")
	}
	var meta struct {
		Name         string   `json:"name"`
		Version      string   `json:"version"`
		License      string   `json:"license"`
		FHIRVersions []string `json:"fhirVersions"`
		FHIRList     []string `json:"fhir-version-list"`
	}
	if err := json.Unmarshal(manifest, &meta); err != nil {
		return fmt.Errorf("package.json: %w", err)
	}
	if !namePattern.MatchString(meta.Name) || !versionPattern.MatchString(meta.Version) {
		return fmt.Errorf("package.json names %.80q, version %.80q", meta.Name, meta.Version)
	}
	if v := append(meta.FHIRVersions, meta.FHIRList...); len(v) > 0 && !slices.ContainsFunc(v, func(s string) bool { return strings.HasPrefix(s, "4.0") }) {
		return fmt.Errorf("%s@%s is for FHIR %s; this server is R4 (4.0.1)", meta.Name, meta.Version, strings.Join(v, ", "))
	}
	a.Name, a.Version, a.License = meta.Name, meta.Version, meta.License
	return nil
}

// eachFile walks the JSON files of a .tgz within the limits. It refuses an archive
// with a path that leads out of it or with links: nothing chooses a path by it, but
// one that tries is not to be trusted.
func eachFile(archive []byte, most limits, do func(name string, body []byte) error) error {
	zr, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return fmt.Errorf("it is not a .tgz: %w", err)
	}
	unpacked := &io.LimitedReader{R: zr, N: most.all}
	tr := tar.NewReader(unpacked)
	for n := 0; ; n++ {
		h, err := tr.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil && unpacked.N == 0:
			return fmt.Errorf("it unpacks to more than %d bytes", most.all)
		case err != nil:
			return fmt.Errorf("read the archive: %w", err)
		case n >= maxEntries:
			return fmt.Errorf("it has more than %d files", maxEntries)
		}
		name := path.Clean(h.Name)
		if path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") || strings.Contains(h.Name, `\`) {
			return fmt.Errorf("the path %.100q leads out of the archive", h.Name)
		}
		switch h.Typeflag {
		case tar.TypeReg:
		case tar.TypeSymlink, tar.TypeLink:
			return fmt.Errorf("%.100s is a link", name)
		default:
			continue
		}
		if path.Ext(name) != ".json" {
			continue
		}
		body, err := readAll(tr, most.file)
		if err != nil && unpacked.N == 0 {
			return fmt.Errorf("it unpacks to more than %d bytes", most.all)
		}
		if err != nil {
			return fmt.Errorf("%.100s: %w", name, err)
		}
		if err := do(name, body); err != nil {
			return err
		}
	}
}
