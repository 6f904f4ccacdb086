package cli

import (
	"context"
	"fmt"
	"io"
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
	long    string
	list    func(w io.Writer, f format, all answerLines) (n int, err error)
}

func resources() []resource {
	return []resource{
		{
			name: "services", aliases: []string{"service", "svc"},
			short: "Services, and why others are not programmed",
			long: `List Services as programmed on this node, one line for each port and IP family.

POLICY is for connections from outside: to all backends ("cluster"), to those on this node
("local"), "refused" if there is no backend at all, or "dropped" if there is none on this node.
BACKENDS counts the backends in use. STATE is "programmed", "pending" with the reason, or "not
programmed" with the reason; "conflict" counts the addresses and ports that other Services
own. --output wide adds the IP family, session affinity and the source ranges of load
balancer addresses; json and yaml have all fields.`,
			list: list[inspect.Service],
		},
		{
			name: "backends", aliases: []string{"backend", "be"},
			short: "backends, and why endpoints are left out",
			long: `List the backends in use on this node, one line for each backend of each port of a Service.

POOLS names the pools of a backend: "cluster" for clients that may reach any backend, "local" for
those that stay on this node. With NAME the list has every endpoint of the Service, and why one
is left out. --output wide adds its node, conditions and EndpointSlice.`,
			list: list[inspect.Backend],
		},
		{
			name: "nodeports", aliases: []string{"nodeport", "np"},
			short: "node ports",
			long: `List node ports as programmed on this node, by number. NAME may be such a number.

POLICY and BACKENDS are for clients that are neither pods of this node nor the node itself;
--output wide adds those for pods and the node, and whether source NAT replaces the address of
clients ("masqueraded").`,
			list: list[inspect.NodePort],
		},
		{
			name: "addresses", aliases: []string{"address", "addr"},
			short: "listening addresses, in mode userspace",
			long: `List where the proxy listens for the ports of Services, in mode userspace.

With --bind loopback, programs on this host connect to these addresses. Otherwise rules send the
packets of Services there; on Windows these are the addresses of Services. --output wide adds which
backends a socket leads to ("cluster": any, "local": those on this node), and the open connections
of the port.`,
			list: list[inspect.Address],
		},
	}
}

func newGet(env Env) *cobra.Command {
	get := &cobra.Command{
		Use:   "get RESOURCE [NAME]",
		Short: "List what is programmed on this node: services, backends, node ports, listening addresses",
		Long: `List what the daemon has programmed on this node.

The command asks the daemon of the network namespace in which it runs: run it in the Sluice pod,
or as root on the node if Sluice is a program there. NAME is NAME or NAMESPACE/NAME. Without
--namespace it lists all namespaces.
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

func newGetOne(r resource, env Env) *cobra.Command {
	var namespace string
	o := newOutput(listFormats())
	cmd := &cobra.Command{
		Use:     r.name + " [NAME]",
		Aliases: r.aliases,
		Short:   "List " + r.short,
		Long:    r.long,
		Example: fmt.Sprintf("  sluice get %[1]s\n  sluice get %[2]s default/web\n  sluice get %[2]s -n kube-system -o wide",
			r.name, r.aliases[1]),
		Args: cobra.MaximumNArgs(1),
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
		all := admin.DialNearest().Ask(ctx, "/"+r.name, url.Values{"namespace": {namespace}, "name": args})
		n, err := r.list(env.Stdout, o.format, all)
		if err == nil && n == 0 {
			fmt.Fprintf(env.Stderr, "No %s.\n", r.name)
		}
		return err
	}
	return cmd
}

func list[T interface{ Rows() []text.Row }](w io.Writer, f format, all answerLines) (int, error) {
	return show(w, f, all, rows[T])
}
