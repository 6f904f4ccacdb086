package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/answer/explain"
	"github.com/sluice-proxy/sluice/internal/fleet"
	"github.com/sluice-proxy/sluice/internal/text"
)

// pluginFile is the name of the program as a plugin of kubectl, and pluginName how people type it.
const (
	pluginFile = "kubectl-sluice"
	pluginName = "kubectl sluice"
)

// plugin are the arguments of all commands of the plugin.
type plugin struct {
	access   fleet.Access
	node     string
	env      Env
	progress io.Writer // a terminal; nil: there is none
}

// newPlugin returns the command kubectl sluice. It prints progress if the standard error of env is a terminal.
func newPlugin(env Env) *cobra.Command {
	p := &plugin{env: env}
	if f := screen(env.Stderr); f != nil {
		p.progress = f
	}
	p.env.Stdout, p.env.Stderr = safe(env.Stdout), text.Safe(env.Stderr)
	root := &cobra.Command{
		Use: pluginFile, Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: pluginName},
		Short: "Ask Sluice on the nodes of a cluster", Long: about("kubectl sluice"),
		Example:          about("kubectl sluice: examples"),
		TraverseChildren: true,
		Args:             noPositional,
		RunE:             func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	fs := root.PersistentFlags()
	p.access.Bind(fs)
	fs.StringVar(&p.node, "node", "", "`name` of the node to ask; required if there are several")
	_ = root.RegisterFlagCompletionFunc("node", p.completeNodes) // it exists
	root.Flags().AddFlagSet(fs)                                  // cobra must know them to find the command behind them
	root.AddCommand(p.newStatus(), p.remote(newGet(p.env), p.only), p.remote(newEvents(p.env), p.only),
		p.remote(newTop(p.env, nil), p.only), p.newExplain(), p.remote(newDrain(p.env), p.ofPod),
		p.remote(newDiff(p.env), p.only), newVersion(p.env))
	return root
}

func (p *plugin) newExplain() *cobra.Command {
	cmd := p.remote(newExplain(p.env), p.ofSource)
	cmd.Long = about("kubectl sluice explain")
	cmd.Example = about("kubectl sluice explain: examples")
	return cmd
}

// target is the pod in which a command runs, and the arguments for it.
type target func(ctx context.Context, c *fleet.Cluster, args []string) (fleet.Pod, []string, error)

// remote returns a command with the arguments of one for the daemon, which runs that one in a pod.
func (p *plugin) remote(like *cobra.Command, to target) *cobra.Command {
	cmd := &cobra.Command{
		Use: like.Use, Aliases: like.Aliases, Short: like.Short, Args: like.Args, RunE: like.RunE,
		ValidArgsFunction: cobra.NoFileCompletions,
		Long:              "Run this command in the pod of Sluice on a node:\n\n" + like.Long,
		Example:           strings.ReplaceAll("\n"+like.Example, "\n  sluice ", "\n  "+pluginName+" ")[1:],
	}
	like.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "filename" { // files are on this machine: sluice explain -f reads them
			cmd.Flags().AddFlag(f)
		}
	})
	for _, sub := range like.Commands() {
		cmd.AddCommand(p.remote(sub, to))
	}
	if !like.HasSubCommands() {
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return trouble(p.run(cmd, args, to)) }
	}
	return cmd
}

// run runs a command in the pod to which its arguments lead.
func (p *plugin) run(cmd *cobra.Command, args []string, to target) error {
	c, err := p.access.Connect()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	pod, args, err := to(ctx, c, args)
	if err != nil {
		return err
	}
	if pod.Trouble != "" {
		return fmt.Errorf("node %s: %s (pod %s)", pod.Node, pod.Trouble, pod.Name)
	}
	err = c.Run(ctx, pod, commandLine(cmd, args), fleet.Streams{Stdout: p.env.Stdout, Stderr: p.env.Stderr})
	if exit, ok := errors.AsType[*fleet.ExitError](err); ok {
		return &exitError{status: exit.Status} // the command has printed why
	}
	if cmd.Context().Err() != nil {
		return &exitError{status: exitFailure} // interrupted, as people end --watch
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", pod.Node, err)
	}
	return nil
}

// commandLine returns the words and flags of a command, without those of the plugin.
func commandLine(cmd *cobra.Command, args []string) (line []string) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			if f.Changed {
				line = append(line, "--"+f.Name+"="+v)
			}
		}
	})
	for ; cmd.HasParent(); cmd = cmd.Parent() {
		line = slices.Insert(line, 0, cmd.Name())
	}
	if len(args) > 0 {
		line = append(line, "--")
	}
	return append(line, args...)
}

// only returns the pod on the node that the user names, or the only one.
func (p *plugin) only(ctx context.Context, c *fleet.Cluster, args []string) (fleet.Pod, []string, error) {
	pod, err := p.on(ctx, c, p.node)
	return pod, args, err
}

// on returns the pod on a node; an empty name is that of the only node.
func (p *plugin) on(ctx context.Context, c *fleet.Cluster, node string) (fleet.Pod, error) {
	pods, err := c.Pods(ctx)
	if err != nil {
		return fleet.Pod{}, err
	}
	if node == "" && len(pods) == 1 {
		return pods[0], nil
	}
	names := make([]string, len(pods))
	for i, pod := range pods {
		if names[i] = pod.Node; pod.Node == node && node != "" {
			return pod, nil
		}
	}
	const few = 3
	runs := fmt.Sprintf("Sluice runs on %s, such as %s", text.Count(len(names), "node"),
		strings.Join(names[:min(few, len(names))], ", "))
	if node == "" {
		return fleet.Pod{}, errors.New("--node is required: " + runs)
	}
	if nearest := text.Nearest(node, names); nearest != "" {
		runs = "did you mean " + nearest + "?"
	}
	return fleet.Pod{}, fmt.Errorf("no pod of Sluice on node %q: %s", node, runs)
}

// completeNodes completes the names of nodes with Sluice.
func (p *plugin) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), nameTime)
	defer cancel()
	var names []string
	if c, err := p.access.Connect(); err == nil {
		pods, _ := c.Pods(ctx) // without an answer there is nothing to complete
		for _, pod := range pods {
			names = append(names, pod.Node)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// ofPod returns the pod of Sluice on the node of a pod, or on that of --node for an address.
func (p *plugin) ofPod(ctx context.Context, c *fleet.Cluster, args []string) (fleet.Pod, []string, error) {
	if p.node != "" || len(args) != 1 {
		return p.only(ctx, c, args)
	}
	at, rest, err := p.ofSource(ctx, c, []string{args[0], "node"})
	if err != nil {
		return fleet.Pod{}, nil, err
	}
	return at, rest[:1], nil
}

// ofSource returns the pod on the node of the source of a connection, which may be a pod. The address of that pod takes
// the place of its name, because daemons know only pods that a Service selects.
func (p *plugin) ofSource(ctx context.Context, c *fleet.Cluster, args []string) (fleet.Pod, []string, error) {
	if len(args) < 2 || args[0] == "node" { // the node itself
		return p.only(ctx, c, args)
	}
	var from fleet.Pod
	addr, err := netip.ParseAddr(args[0])
	switch {
	case err != nil:
		namespace, name, both := strings.Cut(args[0], "/")
		if !both {
			namespace, name = "default", args[0]
		}
		if from, err = c.Pod(ctx, namespace, name); err != nil {
			return fleet.Pod{}, nil, err
		}
		if args, err = fromPod(from, args[1]); err != nil {
			return fleet.Pod{}, nil, err
		}
	case p.node == "":
		if from, err = c.At(ctx, addr); err != nil {
			return fleet.Pod{}, nil, fmt.Errorf("%w; --node names the node of the connection", err)
		}
		if from.Name == "" {
			return fleet.Pod{}, nil, fmt.Errorf("%s is the address of no pod: --node names the node of the connection", addr)
		}
	}
	if p.node != "" {
		from.Node = p.node
	}
	pod, err := p.on(ctx, c, from.Node)
	return pod, args, err
}

// fromPod returns the arguments of explain for connections from a pod, by its address in the family of the destination.
func fromPod(from fleet.Pod, destination string) ([]string, error) {
	if len(from.Addresses) == 0 {
		return nil, fmt.Errorf("pod %s/%s has no address yet", from.Namespace, from.Name)
	}
	for _, a := range from.Addresses {
		if _, err := explain.Parse(a.String(), destination); err == nil {
			return []string{a.String(), destination}, nil
		}
	}
	return []string{from.Addresses[0].String(), destination}, nil
}

func (p *plugin) newStatus() *cobra.Command {
	o := newOutput(listFormats())
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the state of Sluice on every node, or in full on one node",
		Long:    about("kubectl sluice status"),
		Example: about("kubectl sluice status: examples"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.node == "" {
				return p.statusOfAll(cmd.Context(), o.format)
			}
			if o.encode == nil {
				cmd.Flags().Lookup("output").Changed = false // a table is not a form of one status
			}
			return p.run(cmd, args, p.only)
		},
	}
	o.register(cmd, cmd.Flags())
	return answers(cmd)
}

func (p *plugin) statusOfAll(ctx context.Context, f format) error {
	c, err := p.access.Connect()
	if err != nil {
		return err
	}
	pods, err := c.Pods(ctx)
	if err != nil {
		return err
	}
	all, err := c.Ask(ctx, pods, func(done int) { drawProgress(p.progress, done, len(pods)) })
	if err != nil {
		return err
	}
	if _, err := show(p.env.Stdout, f, answered(all...), rows[fleet.Answer]); err != nil {
		return err
	}
	summary, unhealthy, unanswered := fleet.Summary(all)
	if f.encode == nil {
		fmt.Fprintf(p.env.Stderr, "\n%s\n", summary)
	}
	switch {
	case unanswered > 0:
		return &exitError{status: exitTrouble}
	case unhealthy > 0:
		return &exitError{status: exitFailure}
	}
	return nil
}

// drawProgress draws a bar on a terminal, and erases it when everything is done.
func drawProgress(w io.Writer, done, all int) {
	const width = 40
	if w == nil {
		return
	}
	bar := strings.Repeat("#", width*done/all)
	line := fmt.Sprintf("[%-*s] %d of %d nodes", width, bar, done, all)
	if done == all {
		line = strings.Repeat(" ", len(line)) + "\r"
	}
	fmt.Fprintf(w, "\r%s", line)
}
