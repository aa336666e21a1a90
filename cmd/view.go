package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/view"
	"kiln/server/view/format"
	"kiln/server/view/suite"
)

// viewCommand is `kiln view`.
func viewCommand() *cobra.Command {
	c := &cobra.Command{Use: "view", Short: "Turn resources into rows with ViewDefinitions (SQL on FHIR)"}
	c.AddCommand(viewCheck(), viewTest(), viewRun(), viewMaterialize(), viewList(), viewDrop(), viewGrant(true), viewGrant(false))
	return c
}

// viewCheck is `kiln view check`.
func viewCheck() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "check VIEW...", Short: "Check ViewDefinitions in files and folders; needs no server", Args: cobra.MinimumNArgs(1),
		Example: "  kiln view check examples/views\n  kiln view check patients.json --json",
		RunE: func(c *cobra.Command, args []string) error {
			return checkViews(c.OutOrStdout(), args, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// checkedView is what check says of one file.
type checkedView struct {
	File    string          `json:"file"`
	Name    string          `json:"name,omitempty"`
	Valid   bool            `json:"valid"`
	Issues  []checkedIssue  `json:"issues,omitempty"`
	Columns []checkedColumn `json:"columns,omitempty"`
	Wheres  []checkedWhere  `json:"where,omitempty"`
}

type checkedIssue struct {
	Expression  string `json:"expression"`
	Diagnostics string `json:"diagnostics"`
}

type checkedColumn struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Collection bool   `json:"collection,omitempty"`
}

type checkedWhere struct {
	Path string `json:"path"`
	Read string `json:"read"` // index or scan
}

// checkViews prints what is wrong with views, or their columns. It fails where one has a fault.
func checkViews(out io.Writer, paths []string, asJSON bool) error {
	files, err := viewFiles(paths)
	if err != nil {
		return err
	}
	var all []checkedView
	bad := 0
	for _, name := range files {
		checked := checkedView{File: name}
		v, err := readView(name)
		if e, ok := outcome.From(err); ok {
			for _, i := range e.Issues {
				checked.Issues = append(checked.Issues, checkedIssue{i.Expression, i.Diagnostics})
			}
		} else if err != nil {
			checked.Issues = append(checked.Issues, checkedIssue{"", err.Error()})
		}
		if v != nil {
			checked.Valid, checked.Name = true, v.Name
			for i := range v.Columns {
				checked.Columns = append(checked.Columns, checkedColumn{v.Columns[i].Name, v.Columns[i].Type, v.Columns[i].Collection})
			}
			for i := range v.Wheres {
				checked.Wheres = append(checked.Wheres, checkedWhere{v.Wheres[i].Source, whereRead(v, i)})
			}
		} else {
			bad++
		}
		all = append(all, checked)
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(all); err != nil {
			return err
		}
	} else {
		printChecked(out, all)
	}
	if bad > 0 {
		return reportedError{fmt.Errorf("%d of %d views have faults", bad, len(all))}
	}
	return nil
}

func printChecked(out io.Writer, all []checkedView) {
	for _, v := range all {
		if !v.Valid {
			fmt.Fprintf(out, "%s: not valid\n", v.File)
			for _, i := range v.Issues {
				fmt.Fprintf(out, "  %s: %s\n", i.Expression, i.Diagnostics)
			}
			continue
		}
		fmt.Fprintf(out, "%s: valid, %d columns\n", v.File, len(v.Columns))
		for _, col := range v.Columns {
			list := ""
			if col.Collection {
				list = ", a collection"
			}
			fmt.Fprintf(out, "  %s: %s%s\n", col.Name, col.Type, list)
		}
		for _, w := range v.Wheres {
			fmt.Fprintf(out, "  where %s: %s\n", w.Path, w.Read)
		}
	}
}

// viewFiles are the files at paths: files, and the .json files of folders.
func viewFiles(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			out = append(out, p)
			continue
		}
		list, err := filepath.Glob(filepath.Join(p, "*.json"))
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("the folder %s has no .json file", p)
		}
		out = append(out, list...)
	}
	return out, nil
}

// whereRead says how a server reads the resources of a where: by the index, or all of them.
func whereRead(v *view.View, i int) string {
	var own []*fhir.Parameter
	for k := range index.Parameters {
		if p := &index.Parameters[k]; p.Base == v.Resource {
			own = append(own, p)
		}
	}
	if _, ok := view.NewIndexTable(r4.Model, v.Resource, own).Candidates(v, &v.Wheres[i]); ok {
		return "index"
	}
	return "scan"
}

// readView reads and compiles the ViewDefinition of a file.
func readView(name string) (*view.View, error) {
	body, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := fhir.Decode(r4.Model, body)
	if err != nil {
		return nil, err
	}
	d, ok := r.(*r4.ViewDefinition)
	if !ok {
		return nil, fmt.Errorf("%s is no ViewDefinition, found %s", name, r.Type().Name)
	}
	return view.Compile(r4.Model, d)
}

// viewTest is `kiln view test`.
func viewTest() *cobra.Command {
	var report string
	c := &cobra.Command{
		Use: "test PATH...", Short: "Run test files of SQL on FHIR; needs no server", Args: cobra.MinimumNArgs(1),
		Example: "  kiln view test sql-on-fhir/tests --report report.json",
		RunE: func(c *cobra.Command, args []string) error {
			r, err := suite.Run(c.Context(), r4.Model, args)
			if err != nil {
				return err
			}
			if report != "" {
				body, err := json.MarshalIndent(r, "", "  ")
				if err != nil {
					return err
				}
				if err := os.WriteFile(report, append(body, '\n'), 0o644); err != nil {
					return err
				}
			}
			out := c.OutOrStdout()
			names := make([]string, 0, len(r))
			for name := range r {
				names = append(names, name)
			}
			slices.Sort(names)
			for _, name := range names {
				for _, t := range r[name].Tests {
					if !t.Result.Passed {
						fmt.Fprintf(out, "%s, %s: %s\n", name, t.Name, t.Result.Error)
					}
				}
			}
			passed, all := r.Count()
			fmt.Fprintf(out, "%d of %d tests passed\n", passed, all)
			if passed < all {
				return reportedError{errors.New("tests failed")}
			}
			return nil
		},
	}
	c.Flags().StringVar(&report, "report", "", "file to write the report to")
	return c
}

// viewRunOptions are the flags of `kiln view run`.
type viewRunOptions struct {
	remote
	data             []string
	format, output   string
	patients, groups []string
	since            string
	limit            int
	noHeader         bool
}

// viewRun is `kiln view run`.
func viewRun() *cobra.Command {
	o := viewRunOptions{limit: -1}
	c := &cobra.Command{
		Use: "run VIEW...", Short: "Write the rows of views, from a server or from files", Args: cobra.MinimumNArgs(1),
		Long: `Writes the rows of each view: of the resources in files with --data, which needs no server, else of
the server's. A view is a file, a folder of files, or the id of a stored ViewDefinition.
With --output each view is a file NAME.FORMAT in that folder; a file is whole or not there.`,
		Example: "  kiln view run examples/views/patients.json --format csv\n  kiln view run examples/views --data synthea/ --format parquet --output tables",
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c, args)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.data, "data", nil, "NDJSON or JSON file, also gzipped, or a folder of such files, in the place of the server's data")
	f.StringVar(&o.format, "format", "ndjson", "ndjson, csv, json or parquet")
	f.StringVar(&o.output, "output", "", "folder to write a file for each view to (default standard output)")
	f.StringArrayVar(&o.patients, "patient", nil, "only resources of this patient: Patient/id")
	f.StringArrayVar(&o.groups, "group", nil, "only resources of the patients of this group: Group/id")
	f.StringVar(&o.since, "since", "", "only resources that changed after this instant")
	f.IntVar(&o.limit, "limit", -1, "number of rows of each view, at most")
	f.BoolVar(&o.noHeader, "no-header", false, "CSV without a header")
	o.flags(c)
	return c
}

// run writes the rows of each view.
func (o *viewRunOptions) run(c *cobra.Command, args []string) error {
	form, ok := format.Find(o.format)
	if !ok {
		return fmt.Errorf("--format is %q: expected ndjson, csv, json or parquet", o.format)
	}
	if len(o.data) > 0 && (len(o.patients) > 0 || len(o.groups) > 0 || o.since != "") {
		return errors.New("--patient, --group and --since need a server: they do not go with --data")
	}
	if len(o.data) == 0 {
		return o.runOnServer(c, args, form)
	}
	files, err := viewFiles(args)
	if err != nil {
		return err
	}
	if len(files) > 1 && o.output == "" {
		return errors.New("several views need --output: the folder to write their files to")
	}
	for _, name := range files {
		v, err := readView(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		base := v.Name
		if base == "" {
			base = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		}
		if err := writeWhole(c.OutOrStdout(), o.output, base+"."+form.Name, func(w io.Writer) error {
			return o.runOnFiles(c.Context(), w, form, v)
		}); err != nil {
			return err
		}
	}
	return nil
}

// writeWhole writes a file of a folder, or to out without one. A file appears when it is whole.
func writeWhole(out io.Writer, dir, name string, write func(w io.Writer) error) error {
	if dir == "" {
		b := bufio.NewWriterSize(out, 64<<10)
		if err := write(b); err != nil {
			return err
		}
		return b.Flush()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	b := bufio.NewWriterSize(f, 64<<10)
	err = write(b)
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	return err
}

// runOnFiles writes the rows of a view of the resources in files.
func (o *viewRunOptions) runOnFiles(ctx context.Context, w io.Writer, form *format.Format, v *view.View) error {
	rows := form.Open(w, v.Columns, format.Options{NoHeader: o.noHeader})
	e := v.NewEvaluator(ctx, nil, time.Now())
	written := 0
	err := readData(o.data, func(place string, r fhir.Resource) error {
		if r.Type().Name != v.Resource {
			return nil
		}
		if o.limit >= 0 && written >= o.limit {
			return view.ErrStop
		}
		err := e.Eval(r, func(row view.Row) error {
			if err := rows.Write(row); err != nil {
				return format.AsViewError(err, r.Type().Name+"/"+r.Header().ID.Text)
			}
			if written++; written == o.limit {
				return view.ErrStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, view.ErrStop) {
			return fmt.Errorf("%s: %w", place, err)
		}
		return err
	})
	if err != nil && !errors.Is(err, view.ErrStop) {
		return err
	}
	return rows.Close()
}

// readData calls each with the resources of files and of folders: NDJSON and JSON, also gzipped.
// A Bundle counts as its entries.
func readData(paths []string, each func(place string, r fhir.Resource) error) error {
	for _, root := range paths {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			plain := strings.TrimSuffix(name, ".gz")
			if d.IsDir() || name != root && !strings.HasSuffix(plain, ".ndjson") && !strings.HasSuffix(plain, ".json") {
				return nil
			}
			return readDataFile(name, each)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func readDataFile(name string, each func(place string, r fhir.Resource) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 64<<10)
	if start, _ := in.Peek(2); len(start) == 2 && start[0] == 0x1f && start[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer z.Close()
		in = bufio.NewReaderSize(z, 64<<10)
	}
	give := func(place string, body []byte) error {
		read, err := fhir.Read(r4.Model, body)
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		if b, ok := read.Resource.(*r4.Bundle); ok {
			for i := range b.Entry {
				if r := b.Entry[i].Resource; r != nil {
					if err := each(place, r); err != nil {
						return err
					}
				}
			}
			return nil
		}
		return each(place, read.Resource)
	}
	if strings.HasSuffix(strings.TrimSuffix(name, ".gz"), ".json") {
		body, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return give(name, body)
	}
	for line := 1; ; line++ {
		body, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(strings.TrimSpace(string(body))) > 0 {
			if err := give(fmt.Sprintf("%s, line %d", name, line), body); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

// runOnServer writes the rows of views of a server's data.
func (o *viewRunOptions) runOnServer(c *cobra.Command, args []string, form *format.Format) error {
	base, err := o.base(c)
	if err != nil {
		return err
	}
	type subject struct {
		name      string
		parameter parameters.Parameter
	}
	var list []subject
	for _, a := range args {
		if _, err := os.Stat(a); err != nil {
			if !fhir.ValidID(strings.TrimPrefix(a, "ViewDefinition/")) {
				return fmt.Errorf("%s is neither a file nor the id of a view", a)
			}
			id := strings.TrimPrefix(a, "ViewDefinition/")
			list = append(list, subject{id, parameters.Datatype("subjectReference", "Reference", map[string]string{"reference": "ViewDefinition/" + id})})
			continue
		}
		files, err := viewFiles([]string{a})
		if err != nil {
			return err
		}
		for _, name := range files {
			v, err := readView(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			body, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			list = append(list, subject{cmp.Or(v.Name, strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))), parameters.Parameter{Name: "subjectResource", Resource: body}})
		}
	}
	if len(list) > 1 && o.output == "" {
		return errors.New("several views need --output: the folder to write their files to")
	}
	for _, one := range list {
		in := []parameters.Parameter{one.parameter, parameters.Code("_format", form.Name)}
		for _, p := range o.patients {
			in = append(in, parameters.Datatype("patient", "Reference", map[string]string{"reference": p}))
		}
		for _, g := range o.groups {
			in = append(in, parameters.Datatype("group", "Reference", map[string]string{"reference": g}))
		}
		if o.since != "" {
			in = append(in, parameters.String("_since", o.since))
		}
		if o.limit >= 0 {
			in = append(in, parameters.Integer("_limit", o.limit))
		}
		if o.noHeader {
			in = append(in, parameters.Boolean("header", false))
		}
		body, err := parameters.Write(in)
		if err != nil {
			return err
		}
		if err := writeWhole(c.OutOrStdout(), o.output, one.name+"."+form.Name, func(w io.Writer) error {
			return o.fetch(c.Context(), w, base+"/$sql-run", form, body)
		}); err != nil {
			return err
		}
	}
	return nil
}

// fetch writes the answer of a run.
func (o *viewRunOptions) fetch(ctx context.Context, w io.Writer, address string, form *format.Format, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/fhir+json")
	r.Header.Set("Accept", form.ContentType)
	if o.token != "" {
		r.Header.Set("Authorization", "Bearer "+o.token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return err
		}
		return refusalOf(resp.Status, answer)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
