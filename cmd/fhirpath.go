package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
)

// fhirpathCommand is `kiln fhirpath`.
func fhirpathCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "fhirpath",
		Short: "Evaluate FHIRPath expressions, one JSON object a line in and out",
		Long: `Reads lines such as
	{"resource":{"resourceType":"Patient","name":[{"given":["Jim"]}]},"expr":"name.given","env":{}}
and answers each with a line such as
	{"result":[{"type":"string","value":"Jim"}],"error":null}`,
		Example: `  echo '{"resource":{"resourceType":"Patient","active":true},"expr":"active"}' | kiln fhirpath`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return evaluateLines(c.InOrStdin(), c.OutOrStdout(), r4.Model)
		},
	}
}

// maxRequest is the longest line that evaluateLines reads, in bytes.
const maxRequest = 64 << 20

// evaluateLines answers evaluations, one JSON object a line, in order:
//
//	{"resource":…,"expr":"name.given","env":{"limit":5}}
//	{"result":[{"type":"string","value":"Jim"}],"error":null}
//
// resource may be absent. env holds variables: a value, an array of values, or a
// resource; "resource" and "rootResource" set %resource and %rootResource. A
// result's type is the name of its FHIR type, of System types the FHIR name
// (string, dateTime, …); its value is JSON as FHIR writes it, of a Quantity that
// the expression made the FHIRPath text. A line that fails has a null result and
// the reason in error; it goes on with the next. It returns an error only when
// reading or writing fails.
func evaluateLines(in io.Reader, out io.Writer, model *fhir.Model) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxRequest)
	w := bufio.NewWriter(out)
	programs := map[programKey]*fhirpath.Program{}
	var answer []byte
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		// The values of the result point into the line.
		result, err := evaluateLine(bytes.Clone(line), model, programs)
		answer = appendAnswer(answer[:0], result, err)
		if _, err := w.Write(answer); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return lines.Err()
}

// programKey finds a compiled expression again.
type programKey struct {
	expr string
	typ  *fhir.Type
}

// maxPrograms bounds the compiled expressions that evaluateLines keeps.
const maxPrograms = 1000

func evaluateLine(line []byte, model *fhir.Model, programs map[programKey]*fhirpath.Program) (fhirpath.Collection, error) {
	var q struct {
		Resource json.RawMessage            `json:"resource"`
		Expr     *string                    `json:"expr"`
		Env      map[string]json.RawMessage `json:"env"`
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return nil, fmt.Errorf("the line is no JSON object with resource, expr and env: %w", err)
	}
	if q.Expr == nil {
		return nil, errors.New("the line has no expr")
	}
	var input fhir.Node
	if len(q.Resource) > 0 && string(q.Resource) != "null" {
		r, err := fhir.Decode(model, q.Resource)
		if err != nil {
			return nil, fmt.Errorf("resource: %w", err)
		}
		input = fhir.NodeOf(r)
	}
	ctx := fhirpath.Context{Env: map[string]fhirpath.Collection{}}
	for name, raw := range q.Env {
		c, err := variable(raw, model)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", name, err)
		}
		ctx.Env[name] = c
		if len(c) != 1 {
			continue
		}
		node, _ := c[0].Node()
		switch name {
		case "resource":
			ctx.Resource = node
		case "rootResource":
			ctx.RootResource = node
		}
	}
	key := programKey{*q.Expr, input.T}
	p, ok := programs[key]
	if !ok {
		var err error
		if p, err = fhirpath.Compile(*q.Expr, fhirpath.Options{Model: model, Input: input.T, Strict: true}); err != nil {
			return nil, err
		}
		if len(programs) >= maxPrograms {
			clear(programs)
		}
		programs[key] = p
	}
	return p.Eval(&ctx, input)
}

// variable reads the value of a variable.
func variable(raw json.RawMessage, model *fhir.Model) (fhirpath.Collection, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil, errors.New("no value")
	}
	switch raw[0] {
	case 'n':
		return nil, nil
	case 't', 'f':
		return fhirpath.Collection{fhirpath.Boolean(raw[0] == 't')}, nil
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		return fhirpath.Collection{fhirpath.String(s)}, nil
	case '{':
		r, err := fhir.Decode(model, raw)
		if err != nil {
			return nil, err
		}
		return fhirpath.Collection{fhirpath.NodeValue(fhir.NodeOf(r))}, nil
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
		var c fhirpath.Collection
		for _, r := range list {
			if r = bytes.TrimSpace(r); len(r) > 0 && r[0] == '[' {
				return nil, errors.New("an array in an array")
			}
			v, err := variable(r, model)
			if err != nil {
				return nil, err
			}
			c = append(c, v...)
		}
		return c, nil
	}
	v, ok := fhirpath.Number(string(raw))
	if !ok {
		return nil, errors.New("not a JSON value")
	}
	return fhirpath.Collection{v}, nil
}

func appendAnswer(b []byte, c fhirpath.Collection, err error) []byte {
	if err != nil {
		b = append(b, `{"result":null,"error":`...)
		b = fhir.AppendString(b, err.Error())
		return append(b, "}\n"...)
	}
	b = append(b, `{"result":[`...)
	for i, v := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"type":`...)
		b = fhir.AppendString(b, v.JSONType())
		b = append(b, `,"value":`...)
		b = v.AppendJSON(b)
		b = append(b, '}')
	}
	return append(b, "],\"error\":null}\n"...)
}
