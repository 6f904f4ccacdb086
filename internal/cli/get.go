package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/text"
)

// resource is a kind of item that the daemon lists.
type resource struct {
	name    string
	aliases []string
	short   string
	person  person
}

const (
	services  = "services"
	addresses = "addresses"
)

func resources() []resource {
	return []resource{
		{
			name: services, aliases: []string{"service", "svc"},
			short:  "Services, and why others are not programmed",
			person: rows[inspect.Service],
		},
		{
			name: "backends", aliases: []string{"backend", "be"},
			short:  "backends, and why endpoints are left out",
			person: rows[inspect.Backend],
		},
		{
			name: "nodeports", aliases: []string{"nodeport", "np"},
			short:  "node ports",
			person: rows[inspect.NodePort],
		},
		{
			name: addresses, aliases: []string{"address", "addr"},
			short:  "listening addresses, in mode userspace",
			person: rows[inspect.Address],
		},
	}
}

func newGet(env Env) *cobra.Command {
	get := &cobra.Command{
		SuggestFor: resourceNames(),
		Use:        "get RESOURCE [NAME...]",
		Short:      "List what is programmed on this node: services, backends, node ports, addresses; draining pods",
		Long:       about("get"),
		Example:    about("get: examples"),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownResource(args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, r := range resources() {
		get.AddCommand(newGetOne(r, env))
	}
	get.AddCommand(newDraining(env))
	return get
}

// unknownResource is the error of an argument that is no resource.
func unknownResource(arg string) error {
	if nearest := text.Nearest(arg, resourceNames()); nearest != "" {
		return fmt.Errorf("unknown resource %q, did you mean %s?", arg, nearest)
	}
	return fmt.Errorf("unknown resource %q: want services, backends, nodeports, addresses or draining", arg)
}

func resourceNames() (all []string) {
	for _, r := range resources() {
		all = append(append(all, r.name), r.aliases...)
	}
	return all
}

// getting are the arguments of a command that lists a resource.
type getting struct {
	resource
	scope

	env      Env
	output   *output
	names    []string
	sortBy   string
	query    string // the path
	problems bool
	hosts    bool
	bare     bool
	counts   bool    // ask for connections
	missing  []error // one for each name that the daemon does not know
}

func newGetOne(r resource, env Env) *cobra.Command {
	var watch bool
	g := &getting{resource: r, env: env, output: newOutput(append(listFormats(), nameFormat()))}
	stream := newOutput(append(tableFormats(), streamFormats()...))
	cmd := &cobra.Command{
		Use:     r.name + " [NAME...]",
		Aliases: r.aliases,
		Short:   "List " + r.short,
		Long:    about("get " + r.name),
		Example: fmt.Sprintf("  sluice get %[1]s\n  sluice get %[2]s default/web\n  sluice get %[2]s -n kube-system -o wide",
			r.name, r.aliases[1]),
	}
	g.scope.register(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&g.selector, "selector", "l", "", "list Services with these `labels` only, such as app=web,tier!=front")
	fs.BoolVarP(&watch, "watch", "w", false, "then print changes, too, until interrupted")
	fs.StringVar(&g.sortBy, "sort-by", "", "sort by a `field` of -o json, such as .name")
	fs.BoolVar(&g.bare, "no-headers", false, "print tables without titles")
	cmd.MarkFlagsMutuallyExclusive("watch", "sort-by")
	switch r.name {
	case services:
		fs.BoolVar(&g.problems, "problems", false, "list Services with a problem only")
	case addresses:
		fs.BoolVar(&g.hosts, "hosts", false, "print lines for /etc/hosts")
		cmd.MarkFlagsMutuallyExclusive("watch", "hosts")
	}
	g.output.register(cmd, fs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if g.names, g.query = args, "/"+r.name; g.hosts {
			g.query, g.person = "/hosts", prose[inspect.Host]
		}
		if !watch {
			return g.list(cmd.Context())
		}
		if err := stream.Set(g.output.text); err != nil {
			return err
		}
		g.output = stream
		return g.watch(cmd.Context())
	}
	return cmd
}

// format returns how to print the list.
func (g *getting) format() format {
	f := g.output.format
	f.bare = g.bare
	return f
}

// list prints what there is.
func (g *getting) list(ctx context.Context) error {
	g.counts = g.name == services && g.output.wide
	all := g.ask(ctx, g.names)
	if g.sortBy != "" {
		all = template(g.sortBy).sorted(all)
	}
	n, err := show(g.env.Stdout, g.format(), all, g.person)
	if err == nil && len(g.missing) > 0 {
		return errors.Join(g.missing...)
	}
	return noneOf(g.name, n, err, g.env)
}

// noneOf says that a list is empty if it is.
func noneOf(what string, n int, err error, env Env) error {
	if err == nil && n == 0 {
		fmt.Fprintf(env.Stderr, "No %s.\n", what)
	}
	return err
}

// ask asks the daemon for the items of Services, or of all without names. Names that it does not know go to missing; if
// it knows none of them, that is the error.
func (g *getting) ask(ctx context.Context, names []string) answerLines {
	return func(yield func(json.RawMessage, error) bool) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		g.missing = nil
		none := true
		for _, query := range g.queries(names) {
			if len(g.names) == 0 { // a watch of all Services lists of one what it lists of all
				query.Set("brief", "true")
			}
			if g.counts {
				query.Set("counts", "true")
			}
			for answer, err := range admin.DialNearest().Ask(ctx, g.query, query) {
				if _, unknown := errors.AsType[admin.NotFoundError](err); unknown {
					g.missing = append(g.missing, err)
					break
				}
				if err == nil && !g.wanted(answer) {
					continue
				}
				if none = false; !yield(answer, err) || err != nil {
					return
				}
			}
		}
		if none && len(g.missing) > 0 {
			yield(nil, errors.Join(g.missing...))
		}
	}
}

// wanted reports whether an item is to be listed.
func (g *getting) wanted(answer json.RawMessage) bool {
	var s inspect.Service
	return !g.problems || json.Unmarshal(answer, &s) != nil || s.Problem != ""
}

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
