package main

import (
	"context"
	"fmt"
	"time"

	"kiln/definitions"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/terminology"
	"kiln/server/validate"
)

// validateCost is how long the server's validation of an Observation of the
// corpus takes, on one processor of this machine: the median of some hundred
// different ones, each validated many times, without decoding.
func validateCost(ctx context.Context, c Corpus) (time.Duration, error) {
	c.Limit = 3
	rows, _, err := rowsOf(ctx, c)
	if err != nil {
		return 0, err
	}
	library, err := definitions.Open(definitions.FS)
	if err != nil {
		return 0, fmt.Errorf("read the definitions: %w", err)
	}
	codes, err := terminology.New(terminology.Config{Packages: definitions.Embedded})
	if err != nil {
		return 0, err
	}
	v := validate.New(r4.Model, library, codes)
	var times []float64
	for _, t := range rows {
		for _, r := range t {
			if r.kind != "Observation" || len(times) == 300 {
				continue
			}
			resource, err := fhir.Decode(r4.Model, r.body)
			if err != nil {
				return 0, err
			}
			if issues := v.Validate(ctx, resource, validate.Options{}); len(issues) > 0 {
				return 0, fmt.Errorf("an Observation of the corpus does not validate: %s", issues[0].Diagnostics)
			}
			const rounds = 50
			begin := time.Now()
			for range rounds {
				v.Validate(ctx, resource, validate.Options{})
			}
			times = append(times, float64(time.Since(begin))/rounds)
		}
	}
	return time.Duration(figureOf(times).Median), nil
}
