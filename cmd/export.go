package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

// exportOptions are the flags of `kiln export`.
type exportOptions struct {
	bulkRemote
	patients bool
	group    string
	types    []string
	filters  []string
	since    string
	elements []string
	gzip     bool
}

// exportState is in the folder while an export is not whole.
type exportState struct {
	Request string          `json:"request"` // URL of the kick-off
	Gzip    bool            `json:"gzip"`
	Status  string          `json:"status"` // URL
	Done    map[string]bool `json:"done"`   // files, relative to the folder
}

const (
	exportStateFile = ".kiln-export.state"
	manifestFile    = "manifest.json"
)

// exportCommand is `kiln export`.
func exportCommand() *cobra.Command {
	var o exportOptions
	c := &cobra.Command{
		Use:   "export DIR",
		Short: "Export resources from a running server into a folder",
		Long: `Export resources by $export (Bulk Data Access) into DIR: Type.001.ndjson and so on, deleted resources
into deleted/, errors into error/, and manifest.json.

After an interruption the same command goes on with the same job. When all files are there, the results
are deleted on the server. DIR must be empty, or have the state of the same export. --since takes an
instant, or the manifest.json of an earlier export: then only later changes are exported.`,
		Example: `  kiln export /data/export
  kiln export monday --group cohort --type Patient,Observation --gzip
  kiln export tuesday --since monday/manifest.json --client nightly --key nightly.jwk`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.open(c); err != nil {
				return err
			}
			if o.patients && o.group != "" {
				return errors.New("--patients and --group are both given: expected one of them")
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err := runExport(ctx, c, &o, args[0])
			if err != nil && ctx.Err() != nil {
				return errors.New("interrupted: the same command goes on where this one stopped")
			}
			return err
		},
	}
	o.flags(c, "system/*.rs")
	f := c.Flags()
	f.BoolVar(&o.patients, "patients", false, "export the data of all patients")
	f.StringVar(&o.group, "group", "", "export the data of the members of this Group, by its id")
	f.StringSliceVar(&o.types, "type", nil, "export only these resource types")
	f.StringArrayVar(&o.filters, "type-filter", nil, "export only matches of a search, such as 'Observation?code=85354-9'; several of a type are ORed")
	f.StringVar(&o.since, "since", "", "export only what changed after this instant, or after the export with this manifest.json")
	f.StringSliceVar(&o.elements, "elements", nil, "export only these elements, such as Patient.name")
	f.BoolVar(&o.gzip, "gzip", false, "write .ndjson.gz")
	return c
}

// url is the URL of the kick-off.
func (o *exportOptions) url() (string, error) {
	path := "/$export"
	switch {
	case o.patients:
		path = "/Patient/$export"
	case o.group != "":
		path = "/Group/" + url.PathEscape(o.group) + "/$export"
	}
	q := url.Values{}
	if len(o.types) > 0 {
		q.Set("_type", strings.Join(o.types, ","))
	}
	for _, filter := range o.filters {
		q.Add("_typeFilter", filter)
	}
	if len(o.elements) > 0 {
		q.Set("_elements", strings.Join(o.elements, ","))
	}
	if o.since != "" {
		since := o.since
		if _, err := time.Parse(time.RFC3339Nano, since); err != nil {
			var m struct{ TransactionTime string }
			text, err := os.ReadFile(o.since)
			if err != nil {
				return "", fmt.Errorf("--since is %q, which is neither an instant nor a file: %w", o.since, err)
			}
			if err := json.Unmarshal(text, &m); err != nil || m.TransactionTime == "" {
				return "", fmt.Errorf("--since: %s is no manifest of an export", o.since)
			}
			since = m.TransactionTime
		}
		q.Set("_since", since)
	}
	out := o.server + path
	if len(q) > 0 {
		out += "?" + q.Encode()
	}
	return out, nil
}

// openFolder makes the folder, or finds the state of an earlier run in it.
func (o *exportOptions) openFolder(dir, request string) (*exportState, error) {
	st := &exportState{}
	found, err := readState(filepath.Join(dir, exportStateFile), st)
	if err != nil {
		return nil, err
	}
	if found {
		if st.Request != request || st.Gzip != o.gzip {
			return nil, fmt.Errorf("%s has the state of another export: %s", dir, st.Request)
		}
		return st, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("%s is not empty, and has no state of an export", dir)
	}
	return &exportState{Request: request, Gzip: o.gzip}, os.MkdirAll(dir, 0o700)
}

// exportManifest is the manifest of an export.
type exportManifest struct {
	RequiresAccessToken bool                 `json:"requiresAccessToken"`
	Output              []exportManifestFile `json:"output"`
	Deleted             []exportManifestFile `json:"deleted"`
	Error               []exportManifestFile `json:"error"`
}

type exportManifestFile struct {
	Type  string `json:"type"`
	URL   string `json:"url"`
	Count *int64 `json:"count"`
}

func runExport(ctx context.Context, c *cobra.Command, o *exportOptions, dir string) error {
	start := time.Now()
	// 1. The job: that of an earlier run, or a new one.
	request, err := o.url()
	if err != nil {
		return err
	}
	st, err := o.openFolder(dir, request)
	if err != nil {
		return err
	}
	bar := progress(c.ErrOrStderr(), o.quiet || wantsJSON(c), -1)
	defer bar.Finish()
	keep := func() error { return writeState(filepath.Join(dir, exportStateFile), st) }
	if st.Status == "" {
		if st.Status, err = o.kickOff(ctx, http.MethodGet, request, nil); err != nil {
			return err
		}
		if err := keep(); err != nil {
			return err
		}
	}
	text, err := o.await(ctx, st.Status, func(p string) { bar.Describe(p); bar.Add(0) })
	if errors.Is(err, errGone) {
		return fmt.Errorf("%w: empty %s and export again", err, dir)
	}
	if err != nil {
		return err
	}
	var m exportManifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("the manifest: %w", err)
	}

	// 2. The files.
	if st.Done == nil {
		st.Done = make(map[string]bool)
	}
	result := bulkResult{}
	err = m.eachFile(func(name string, f exportManifestFile, lines *int64) error {
		if o.gzip {
			name += ".gz"
		}
		if err := o.fetch(ctx, dir, name, f, st.Done[name], bar, lines, &result.Bytes); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		st.Done[name] = true
		return keep()
	}, &result)
	if err != nil {
		return err
	}

	// 3. The end.
	if err := os.WriteFile(filepath.Join(dir, manifestFile), append(bytes.TrimSpace(text), '\n'), 0o600); err != nil {
		return err
	}
	if err := o.remove(ctx, st.Status); err != nil {
		return fmt.Errorf("delete the results on the server: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, exportStateFile)); err != nil {
		return err
	}
	result.Seconds = time.Since(start).Seconds()
	if err := result.print(c); err != nil {
		return err
	}
	if result.Errors > 0 {
		return fmt.Errorf("%d errors: see %s", result.Errors, filepath.Join(dir, "error"))
	}
	return nil
}

// eachFile calls each with the files of the manifest, their names in the folder without .gz, and the number of result
// that counts their lines; nil counts none.
func (m *exportManifest) eachFile(each func(name string, f exportManifestFile, lines *int64) error, result *bulkResult) error {
	for _, list := range []struct {
		folder string
		files  []exportManifestFile
		lines  *int64
	}{{"", m.Output, &result.Resources}, {"deleted", m.Deleted, nil}, {"error", m.Error, &result.Errors}} {
		numbers := make(map[string]int)
		for _, f := range list.files {
			if f.Type == "" || f.Type != filepath.Base(f.Type) || strings.HasPrefix(f.Type, ".") {
				return fmt.Errorf("the manifest names the type %q", f.Type)
			}
			numbers[f.Type]++
			name := filepath.Join(list.folder, fmt.Sprintf("%s.%03d.ndjson", f.Type, numbers[f.Type]))
			if err := each(name, f, list.lines); err != nil {
				return err
			}
		}
	}
	return nil
}

// fetch downloads a file of the manifest, and counts its lines.
func (o *exportOptions) fetch(ctx context.Context, dir, name string, f exportManifestFile, done bool, bar *progressbar.ProgressBar, lines, size *int64) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if !done {
		bar.Describe(name)
		for tries := 1; ; tries++ {
			err := o.download(ctx, path+".part", f.URL, bar)
			if err == nil {
				break
			}
			if tries == 5 || ctx.Err() != nil {
				return err
			}
			if err := pauseTime(ctx, time.Duration(tries)*time.Second); err != nil {
				return err
			}
		}
	}
	if !done {
		n, _, err := countLines(path + ".part")
		if err != nil {
			return err
		}
		if f.Count != nil && n != *f.Count {
			os.Remove(path + ".part")
			return fmt.Errorf("the file has %d lines, the manifest says %d", n, *f.Count)
		}
		if err := os.Rename(path+".part", path); err != nil {
			return err
		}
	}
	n, unpacked, err := countLines(path)
	if err != nil {
		return err
	}
	if lines != nil {
		*lines += n
	}
	*size += unpacked
	return nil
}

// download adds the missing rest to a file; with gzip the file is written anew.
func (o *exportOptions) download(ctx context.Context, path, address string, bar *progressbar.ProgressBar) error {
	flags, headers := os.O_CREATE|os.O_WRONLY, []string{"Accept", "application/fhir+ndjson", "Accept-Encoding", "identity"}
	at := int64(0)
	if info, err := os.Stat(path); err == nil && !o.gzip {
		at = info.Size()
	}
	switch {
	case o.gzip:
		headers[3] = "gzip"
	case at > 0:
		headers = append(headers, "Range", "bytes="+strconv.FormatInt(at, 10)+"-")
	}
	resp, err := o.send(ctx, http.MethodGet, address, nil, headers...)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case at > 0 && resp.StatusCode == http.StatusPartialContent:
		flags |= os.O_APPEND
	case at > 0 && resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return nil // all of it is there
	case resp.StatusCode == http.StatusOK:
		flags |= os.O_TRUNC
	default:
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return answerError(resp.Status, answer)
	}
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	var out io.Writer = file
	var packing *gzip.Writer
	if o.gzip && resp.Header.Get("Content-Encoding") != "gzip" {
		packing = gzip.NewWriter(file)
		out = packing
	}
	_, err = io.Copy(io.MultiWriter(out, bar), resp.Body)
	if packing != nil {
		err = errors.Join(err, packing.Close())
	}
	return errors.Join(err, file.Close())
}

// countLines counts the lines of a file, which may be gzip, and its unpacked bytes.
func countLines(path string) (lines, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	var in io.Reader = file
	var head [2]byte
	if n, _ := io.ReadFull(file, head[:]); n == 2 && head == [2]byte{0x1f, 0x8b} {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return 0, 0, err
		}
		if in, err = gzip.NewReader(file); err != nil {
			return 0, 0, err
		}
	} else if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, 0, err
	}
	buffer := make([]byte, 256<<10)
	for {
		n, err := in.Read(buffer)
		lines += int64(bytes.Count(buffer[:n], []byte{'\n'}))
		size += int64(n)
		if err == io.EOF {
			return lines, size, nil
		}
		if err != nil {
			return lines, size, err
		}
	}
}
