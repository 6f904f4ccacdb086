package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

// resource is a kind of item that the daemon lists.
type resource struct {
	name    string
	aliases []string
	short   string
	long    string
	table   func(w io.Writer, width inspect.Width) printer
}

// resources returns all resources.
func resources() []resource {
	return []resource{
		{
			name: "services", aliases: []string{"service", "svc"},
			short: "Services, and why others are not programmed",
			long: `List Services as programmed on this node, one line for each port and IP family.

POLICY is for connections from outside: to all backends ("cluster"), to those on this node
("local"), "refused" if there is no backend at all, or "dropped" if there is none on this node.
BACKENDS counts those in use. STATE is "programmed", "pending" with the reason, or "not
programmed" with the reason; "conflict" counts the addresses and ports that belong to other
Services. --output wide adds the IP family, session affinity and the source ranges of load
balancer addresses; json and yaml have all fields.`,
			table: func(w io.Writer, width inspect.Width) printer { return tableItems(w, width, inspect.ServiceTable) },
		},
		{
			name: "backends", aliases: []string{"backend", "be"},
			short: "backends, and why endpoints are left out",
			long: `List the backends in use on this node, one line for each backend of each port of a Service.

POOLS names the pools of a backend: "cluster" for clients that may reach any backend, "local" for
those that stay on this node. With NAME every endpoint of the Service is listed, with the reason
why it is left out. --output wide adds its node, conditions and EndpointSlice.`,
			table: func(w io.Writer, width inspect.Width) printer { return tableItems(w, width, inspect.BackendTable) },
		},
		{
			name: "nodeports", aliases: []string{"nodeport", "np"},
			short: "node ports",
			long: `List node ports as programmed on this node, by number. NAME may be such a number.

POLICY and BACKENDS are for clients that are neither pods of this node nor the node itself;
--output wide adds those for pods and the node, and whether source NAT replaces the address of
clients ("masqueraded").`,
			table: func(w io.Writer, width inspect.Width) printer { return tableItems(w, width, inspect.NodePortTable) },
		},
		{
			name: "addresses", aliases: []string{"address", "addr"},
			short: "listening addresses, in mode userspace",
			long: `List where the proxy listens for the ports of Services, in mode userspace.

With --bind loopback, programs on this host connect to these addresses. Otherwise rules send the
packets of Services there; on Windows these are the addresses of Services. --output wide adds which backends a socket leads to ("cluster": any,
"local": those on this node), and the open connections of the port.`,
			table: func(w io.Writer, width inspect.Width) printer { return tableItems(w, width, inspect.AddressTable) },
		},
	}
}

// newGet returns the command that lists what is programmed.
func newGet(env Env) *cobra.Command {
	get := &cobra.Command{
		Use:   "get RESOURCE [NAME]",
		Short: "List what is programmed on this node: services, backends, node ports, listening addresses",
		Long: `List what the daemon has programmed on this node.

The command asks the daemon of the network namespace in which it runs: run it in the Sluice pod,
or as root on the node if Sluice is a program there. NAME is NAME or NAMESPACE/NAME. Without --namespace it lists all namespaces.
In modes ipvs, ebpf and userspace, backends have the scheduler, the weight and the numbers of connections.`,
		Example: `  sluice get services
  sluice get svc web -n default -o wide
  sluice get backends default/web
  sluice get nodeports 30080
  kubectl -n kube-system exec POD -- sluice get services`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown resource %q: want services, backends, nodeports or addresses", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, r := range resources() {
		get.AddCommand(newGetOne(r, env))
	}
	return get
}

// newGetOne returns the command that lists one resource.
func newGetOne(r resource, env Env) *cobra.Command {
	var namespace string
	o := newOutput("table", "wide", "json", "yaml")
	cmd := &cobra.Command{
		Use:     r.name + " [NAME]",
		Aliases: r.aliases,
		Short:   "List " + r.short,
		Long:    r.long,
		Example: fmt.Sprintf("  sluice get %[1]s\n  sluice get %[2]s default/web\n  sluice get %[2]s -n kube-system -o wide", r.name, r.aliases[1]),
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "list this namespace only (default: all)")
	cmd.Flags().BoolP("all-namespaces", "A", false, "all namespaces, as without --namespace")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	o.register(cmd, cmd.Flags())
	complete(cmd, "namespace", nil)
	cmd.ValidArgsFunction = completeNames(&namespace)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
		defer cancel()
		body, err := admin.DialNearest().Ask(ctx, "/"+r.name, url.Values{"namespace": {namespace}, "name": args})
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }() // it is only read
		return r.show(env, body, o)
	}
	return cmd
}

// show prints a list.
func (r resource) show(env Env, answer io.Reader, o *output) error {
	var p printer
	switch o.format {
	case "json":
		p = jsonItems(env.Stdout)
	case "yaml":
		p = yamlItems(env.Stdout)
	case "wide":
		p = r.table(env.Stdout, inspect.Wide)
	default:
		p = r.table(env.Stdout, inspect.Narrow)
	}
	n, err := eachItem(answer, p.item)
	if err != nil {
		return err
	}
	if n == 0 {
		fmt.Fprintf(env.Stderr, "No %s.\n", r.name)
	}
	return p.end()
}
