package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

// importOptions are the flags of `kiln import`.
type importOptions struct {
	bulkRemote
	source, errors, state string
}

// importState is the state file of an import that is not whole.
type importState struct {
	Server string                  `json:"server"`
	Files  map[string]*importEntry `json:"files"` // by path, size and time of change
}

// importEntry is a file that was uploaded.
type importEntry struct {
	Status string     `json:"status"` // URL
	Done   bool       `json:"done"`
	Result bulkResult `json:"result"`
}

// importCommand is `kiln import`.
func importCommand() *cobra.Command {
	var o importOptions
	c := &cobra.Command{
		Use:   "import PATH…",
		Short: "Import NDJSON files into a running server",
		Long: `Upload .ndjson and .ndjson.gz files to $import. A folder stands for the files in it and below it, but
for the folders deleted and error of an export.

Each line is stored under its id. A line that is stored already in the same form changes nothing, so an
import can be run again. Lines that cannot be stored are written to the error file, and the exit status is
not zero then. After an interruption the same command goes on: the state file has the files that are done.`,
		Example: `  kiln import /data/export
  kiln import Patient.ndjson.gz --source https://old.example.org/fhir
  kiln import /data/export --client loader --key loader.jwk`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, paths []string) error {
			if err := o.open(c); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err := runImport(ctx, c, &o, paths)
			if err != nil && ctx.Err() != nil {
				return errors.New("interrupted: the same command goes on where this one stopped")
			}
			return err
		},
	}
	o.flags(c, "system/*.cu")
	f := c.Flags()
	f.StringVar(&o.source, "source", "", "URI that becomes meta.source of resources without one")
	f.StringVar(&o.errors, "errors", "kiln-import.errors.ndjson", "file that errors are written to")
	f.StringVar(&o.state, "state", "kiln-import.state", "file with the list of imported files")
	return c
}

// importFile is a file to be imported.
type importFile struct {
	path string
	key  string // in the state file
	size int64
}

// importFiles finds the files of some paths.
func importFiles(paths []string) ([]importFile, error) {
	var out []importFile
	add := func(path string, info fs.FileInfo) error {
		full, err := filepath.Abs(path)
		out = append(out, importFile{path, fmt.Sprintf("%s %d %s", full, info.Size(), info.ModTime().UTC().Format(time.RFC3339Nano)), info.Size()})
		return err
	}
	for _, root := range paths {
		info, err := os.Stat(root)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			if !isNDJSONFile(root) {
				return nil, fmt.Errorf("%s: expected .ndjson or .ndjson.gz", root)
			}
			if err := add(root, info); err != nil {
				return nil, err
			}
			continue
		}
		err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir():
				if path != root && (d.Name() == "deleted" || d.Name() == "error") {
					return filepath.SkipDir
				}
				return nil
			case !isNDJSONFile(path):
				return nil
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			return add(path, info)
		})
		if err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing to import in %s: expected .ndjson or .ndjson.gz", strings.Join(paths, ", "))
	}
	return out, nil
}

func isNDJSONFile(path string) bool {
	return strings.HasSuffix(path, ".ndjson") || strings.HasSuffix(path, ".ndjson.gz")
}

func runImport(ctx context.Context, c *cobra.Command, o *importOptions, paths []string) error {
	start := time.Now()
	files, err := importFiles(paths)
	if err != nil {
		return err
	}
	st := &importState{Server: o.server, Files: make(map[string]*importEntry)}
	found, err := readState(o.state, st)
	if err != nil {
		return err
	}
	if found && st.Server != o.server {
		return fmt.Errorf("%s is the state of an import into %s: give another --state", o.state, st.Server)
	}
	total := int64(0)
	for _, f := range files {
		total += f.size
	}
	bar := progress(c.ErrOrStderr(), o.quiet || wantsJSON(c), total)
	defer bar.Finish()
	fails := &errorFile{path: o.errors, adds: found}
	var result bulkResult
	for _, f := range files {
		e := st.Files[f.key]
		if e == nil {
			e = &importEntry{}
			st.Files[f.key] = e
		}
		if err := o.importOne(ctx, f, e, fails, bar, func() error { return writeState(o.state, st) }); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", f.path, err), fails.close())
		}
		result.Resources, result.Bytes, result.Errors = result.Resources+e.Result.Resources, result.Bytes+f.size, result.Errors+e.Result.Errors
	}
	if err := fails.close(); err != nil {
		return fmt.Errorf("error file: %w", err)
	}
	if err := os.Remove(o.state); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	result.Seconds = time.Since(start).Seconds()
	if err := result.print(c); err != nil {
		return err
	}
	if result.Errors > 0 {
		return fmt.Errorf("%d lines could not be stored: see %s", result.Errors, o.errors)
	}
	return nil
}

// importOne imports a file, or goes on with it.
func (o *importOptions) importOne(ctx context.Context, f importFile, e *importEntry, fails *errorFile, bar *progressbar.ProgressBar, keep func() error) error {
	bar.Describe(filepath.Base(f.path))
	if e.Done {
		return bar.Add64(f.size)
	}
	for {
		if e.Status == "" {
			if err := o.uploadFile(ctx, f, e, bar); err != nil {
				return err
			}
			if err := keep(); err != nil {
				return err
			}
		}
		text, err := o.await(ctx, e.Status, func(p string) { bar.Describe(filepath.Base(f.path) + ", " + p); bar.Add(0) })
		if errors.Is(err, errGone) { // between two runs; storing the lines again changes nothing
			e.Status = ""
			continue
		}
		if err != nil {
			return err
		}
		if err := o.readResult(ctx, text, f, e, fails); err != nil {
			return err
		}
		if err := o.remove(ctx, e.Status); err != nil {
			return err
		}
		e.Done = true
		return keep()
	}
}

func (o *importOptions) uploadFile(ctx context.Context, f importFile, e *importEntry, bar *progressbar.ProgressBar) error {
	address := o.server + "/$import"
	if o.source != "" {
		address += "?" + url.Values{"inputSource": {o.source}}.Encode()
	}
	var open *os.File
	defer func() {
		if open != nil {
			open.Close()
		}
	}()
	var err error
	e.Status, err = o.kickOff(ctx, http.MethodPost, address, func() (io.Reader, error) {
		if open != nil {
			open.Close()
		}
		var err error
		if open, err = os.Open(f.path); err != nil {
			return nil, err
		}
		return io.TeeReader(open, bar), nil
	}, "Content-Type", "application/fhir+ndjson")
	return err
}

// readResult reads the manifest of an import, and keeps its errors.
func (o *importOptions) readResult(ctx context.Context, manifest []byte, f importFile, e *importEntry, fails *errorFile) error {
	var m struct {
		Output []struct{ Count int64 }
		Error  []struct {
			URL   string
			Count int64
		}
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return fmt.Errorf("the manifest: %w", err)
	}
	e.Result = bulkResult{}
	for _, out := range m.Output {
		e.Result.Resources += out.Count
	}
	for _, list := range m.Error {
		e.Result.Errors += list.Count
		resp, err := o.send(ctx, http.MethodGet, list.URL, nil, "Accept", "application/fhir+ndjson")
		if err != nil {
			return err
		}
		in := bufio.NewReader(resp.Body)
		for resp.StatusCode == http.StatusOK {
			line, err := in.ReadBytes('\n')
			if len(line) > 1 {
				fails.add(failure{Source: f.path, Outcome: slices.Clone(line[:len(line)-1])})
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				resp.Body.Close()
				return err
			}
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New("the file of errors: the server answers " + strconv.Itoa(resp.StatusCode))
		}
	}
	return fails.err
}
