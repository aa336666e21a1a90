package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"kiln/definitions"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpackage"
	"kiln/server/outcome"
	"kiln/server/searchparam"
	"kiln/server/terminology"
	"kiln/server/validate"
)

// PackageReader checks packages as $install-package does, without a database: by the
// definitions of a folder of packages, without the package name, which the checked one
// replaces.
func PackageReader(dir fs.FS, name string) (fhirpackage.Reader, error) {
	var none fhirpackage.Reader
	library, err := definitions.Open(dir)
	if err != nil {
		return none, err
	}
	codes, err := terminology.New(terminology.Config{Packages: func() (*definitions.Library, error) { return library, nil }, Now: time.Now})
	if err != nil {
		return none, err
	}
	base, err := CompiledParameters()
	if err != nil {
		return none, err
	}
	validator := validate.New(r4.Model, library, codes)
	parameters := searchparam.Compiled(base, index.Value)
	used, err := usedCodes(library, name)
	if err != nil {
		return none, err
	}
	return fhirpackage.Reader{
		Model: r4.Model,
		Validate: func(ctx context.Context, r fhir.Resource) error {
			if p, ok := r.(*r4.SearchParameter); ok {
				if err := parameters.Check(p); err != nil {
					return err
				}
			}
			issues := validator.Validate(ctx, r, validate.Options{Terminology: codes})
			for _, i := range issues {
				if i.Severity == outcome.Failure || i.Severity == outcome.Fatal {
					return outcome.Unprocessable(issues)
				}
			}
			return nil
		},
		Parameter: parameters.Check,
		Warnings:  parameters.Warnings,
		Restates:  parameters.Restates,
		Used: func(typ, code string) (string, bool) {
			bases := []string{typ, "Resource"}
			if r := r4.Model.Resources[typ]; r != nil {
				bases = append(bases, r.Type().Base)
			}
			for _, base := range bases {
				if url, ok := used[[2]string{base, code}]; ok {
					return url, true
				}
			}
			return "", false
		},
	}, nil
}

// usedCodes are the URLs of the search parameters of a library by base and code, without
// the package name's own.
func usedCodes(library *definitions.Library, name string) (map[[2]string]string, error) {
	used := make(map[[2]string]string)
	for e, body := range library.All("SearchParameter") {
		if strings.HasPrefix(e.Package, name+"@") {
			continue
		}
		var p struct {
			Code string
			Base []string
		}
		if err := json.Unmarshal(body, &p); err != nil {
			return nil, fmt.Errorf("%s: SearchParameter/%s: %w", e.Package, e.ID, err)
		}
		for _, base := range p.Base {
			key := [2]string{base, p.Code}
			if _, ok := used[key]; !ok || e.Package == "local" {
				used[key] = e.URL
			}
		}
	}
	return used, nil
}
