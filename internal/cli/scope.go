package cli

import (
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

// scope says of which Services a command lists something, besides their names.
type scope struct{ namespace, selector string }

// register adds the flags of a command that takes names of Services, and completes them.
func (s *scope) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "list this namespace only (default: all)")
	cmd.Flags().BoolP("all-namespaces", "A", false, "all namespaces, as without --namespace")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces) // it exists, and has no other
	cmd.ValidArgsFunction = completeNames(&s.namespace)
}

// each returns names, or one that stands for all.
func each(names []string) []string {
	if len(names) == 0 {
		return []string{""}
	}
	return names
}

// filters returns a filter for each name.
func (s *scope) filters(names []string) ([]inspect.Filter, error) {
	var filters []inspect.Filter
	for _, name := range each(names) {
		f, err := inspect.ParseFilter(name, s.namespace)
		if err != nil {
			return nil, err
		}
		filters = append(filters, f)
	}
	return filters, nil
}

// queries returns a query to the daemon for each name.
func (s *scope) queries(names []string) []url.Values {
	var queries []url.Values
	for _, name := range each(names) {
		queries = append(queries, url.Values{"namespace": {s.namespace}, "name": {name}, "selector": {s.selector}})
	}
	return queries
}

// serviceOf returns the NAMESPACE/NAME of the Service of an item of a list.
func serviceOf(answer json.RawMessage) (string, error) {
	var i item
	err := admin.Decode(answer, &i)
	return i.service(), err
}
