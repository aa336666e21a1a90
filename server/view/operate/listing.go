package operate

import (
	"context"

	"kiln/server/interaction"
	"kiln/server/operation"
	"kiln/server/outcome"
)

// Listed are the operations for the set of all operations, which lists them in the capability statement;
// $sqlquery-run only where SQL queries are served. A request goes to Answer; an entry of a batch cannot
// get an answer that is no resource.
func Listed(withSQL bool) []operation.Operation {
	refuse := func(_ context.Context, p operation.Request, _ *operation.Inputs) (interaction.Response, error) {
		return interaction.Response{}, outcome.NotSupported("%s answers with rows, which an entry of a Bundle cannot have: send it as a request of its own", p.Name)
	}
	names := []string{"sql-export", "sql-run", "viewdefinition-export", "viewdefinition-run"}
	if withSQL {
		names = append(names, "sqlquery-run")
	}
	var out []operation.Operation
	for _, name := range names {
		out = append(out, operation.Operation{Definition: "http://kiln/fhir/OperationDefinition/" + name, Run: refuse, OwnBody: true})
	}
	return out
}
