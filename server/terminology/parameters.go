package terminology

import (
	"encoding/json"

	"kiln/server/parameters"
)

// askedParameters are the inputs of an operation on the external server.
type askedParameters []parameters.Parameter

// add adds an input that says something.
func (a *askedParameters) add(p parameters.Parameter) {
	if !p.Empty() {
		*a = append(*a, p)
	}
}

func (a *askedParameters) flag(name string, on bool) {
	if on {
		a.add(parameters.Boolean(name, true))
	}
}

func (a *askedParameters) resource(name string, r any) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	a.add(parameters.Resource(name, b))
	return nil
}
