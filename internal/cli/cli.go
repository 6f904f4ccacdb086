// Package cli is the command line: the proxy itself, which takes kube-proxy's, and commands that answer questions.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/handover"
	"github.com/sluice-proxy/sluice/internal/metrics"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/text"
	"github.com/sluice-proxy/sluice/internal/windows/service"
)

// Env is the environment of a command.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Hostname       func() (string, error)
	Hangup         <-chan os.Signal // asks for a full comparison with the kernel; may be nil
	Synced         func(proxy.Sync) // called after every attempt to write to the kernel; may be nil
	Kinds          []plane.Kind     // data planes, the default first; nil: those of this build

	// Before is the Handover of the previous run of this process, nil if there is none.
	// Execute re-executes the program; nil: the configuration file is not watched.
	Before  *handover.Handover
	Execute func(*handover.Handover) error

	// Service runs a program as a service of Windows with a name. The program calls running once it
	// serves. nil: this system has no such services.
	Service func(ctx context.Context, name string, program service.Program) error
}

// Main runs a command line, args[0] being the name of the program, and returns
// the exit status. Under the name kube-proxy there are no subcommands; under the
// name kubectl-sluice it is a plugin of kubectl.
func Main(ctx context.Context, args []string, env Env) int {
	if env.Kinds == nil {
		env.Kinds = app.Kinds()
	}
	name := strings.TrimSuffix(filepath.Base(args[0]), ".exe")
	root := newRoot(name, env)
	switch name {
	case "kube-proxy":
	case pluginFile:
		root, name = newPlugin(env), pluginName
	default:
		asking := env
		asking.Stdout, asking.Stderr = safe(env.Stdout), text.Safe(env.Stderr)
		root.AddCommand(newGet(asking), newStatus(asking, env.Stdout), newEvents(asking), newDiff(asking), newExplain(asking),
			newTop(asking, env.Stdout), newDrain(asking), newPlan(env), newPreflight(asking), newBugreport(env),
			newCompletion(env), newMan(env), newVersion(env))
		completeModes(root, app.Modes(env.Kinds))
	}
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SuggestionsMinimumDistance = maxTypos
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		_ = help(cmd, args, env.Stdout) // it cannot be reported
	})
	root.CompletionOptions.DisableDefaultCmd = true // newCompletion has more help; kube-proxy has no such command
	root.SetArgs(args[1:])
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && err.Error() != "" {
		fmt.Fprintf(text.Safe(env.Stderr), "%s: %v\n", name, err)
	}
	return exitStatus(err)
}

func newRoot(name string, env Env) *cobra.Command {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	root := &cobra.Command{
		Use:   name + " [flags]",
		Short: "Make the kernel send each connection for a Kubernetes Service to a healthy backend",
		Long:  strings.ReplaceAll(about("sluice"), "NAME", name),
		Args:  noPositional,
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), flags, env) },
	}
	root.Flags().AddFlagSet(fs)
	root.Flags().SetNormalizeFunc(fs.GetNormalizeFunc())
	root.Flags().SortFlags = false
	root.PersistentFlags().BoolP("help", "h", false, "-h: in short; --help: in full")
	return root
}

// noPositional returns an error for arguments. Like kube-proxy it ignores empty ones.
func noPositional(cmd *cobra.Command, args []string) error {
	for _, a := range args {
		if err := misspelledCommand(cmd, a); err != nil {
			return err
		}
		if _, err := strconv.ParseBool(a); err == nil {
			return fmt.Errorf("unexpected argument %q: write the value of a flag after =, such as --masquerade-all=%s", a, a)
		}
		if a != "" {
			return fmt.Errorf("unexpected argument %q: flags begin with --; see --help", a)
		}
	}
	return nil
}

// run runs the proxy, or the task that flags ask for in its place.
func run(ctx context.Context, flags *config.Flags, env Env) error {
	if v := flags.Version(); v.Print != "" {
		return printVersion(env.Stdout, v)
	}
	signal.Ignore(syscall.SIGPIPE) // a closed log does not end the proxy
	reader, chosen := choosing(ctx, flags, env)
	if err := env.Before.Get(textName, &reader.text); err != nil {
		return err
	}
	reader.passed = reader.text != nil
	o, logs, err := reader.load()
	if err != nil {
		if env.Service != nil && flags.WindowsService() {
			return env.asService(ctx, func(context.Context) error { return err })
		}
		return err
	}
	defer logs.Close()
	cfg := o.Config
	switch {
	case cfg.WriteConfigTo != "":
		return cfg.Write()
	case cfg.Cleanup:
		return cleanup(ctx, o, env.Stdout)
	case cfg.InitOnly:
		return app.Prepare(ctx, o)
	}
	o.Reason, o.Version, o.Flags, o.SetVerbosity = chosen.Reason, version(), flags.Values(), logs.SetVerbosity
	o.Compare, o.Before = env.Hangup, env.Before
	if env.Execute != nil {
		o.Load, o.File = reader.read, flags.File()
	}
	o.Log.Info("Starting", "version", o.Version, "mode", cfg.Mode, "reason", o.Reason, "node", cfg.NodeName)
	next, err := env.run(ctx, o)
	if err != nil || next == nil {
		return err
	}
	if err := next.Put(textName, reader.text); err != nil {
		return err
	}
	if err := next.Finish(); err != nil {
		o.Log.Warn("The restarted program does not inherit everything", "error", err)
	}
	logs.Flush()
	return env.Execute(next)
}

func cleanup(ctx context.Context, o app.Options, w io.Writer) error {
	removed, err := app.Cleanup(ctx, o)
	for _, line := range removed {
		fmt.Fprintln(w, line)
	}
	return err
}

// configuration reads the configuration, at the start and whenever the file changes.
type configuration struct {
	flags *config.Flags
	env   Env
	opt   config.Options

	// text is the content of the file when it was last read. After the program has re-executed itself it is the content
	// that the previous run checked, even if the file has changed since.
	text   []byte
	passed bool // the next read returns text, not the file
}

// textName is the name of configuration.text in a Handover.
const textName = "configuration"

func (c *configuration) read() (*config.Config, []string, error) {
	return c.flags.Load(config.Env{Hostname: c.env.Hostname, ReadFile: c.readFile, Getenv: os.Getenv}, c.opt)
}

func (c *configuration) readFile(name string) (text []byte, err error) {
	if c.passed {
		c.passed = false
		return c.text, nil
	}
	c.text, err = config.ReadFile(name)
	return c.text, err
}

// load reads the configuration, opens the logs and logs the warnings. The caller closes the logs.
func (c *configuration) load() (app.Options, *logs, error) {
	cfg, warnings, err := c.read()
	if err != nil {
		return app.Options{}, nil, err
	}
	logs, err := openLogs(cfg.Logging, c.env.Stdout, c.env.Stderr)
	if err != nil {
		return app.Options{}, nil, err
	}
	log := logs.Logger()
	for _, w := range warnings {
		log.Warn(w)
	}
	return app.Options{
		Config: cfg, Warnings: warnings, Log: log, Stdin: c.env.Stdin, Synced: c.env.Synced, Kinds: c.env.Kinds,
	}, logs, nil
}

// choosing returns a reader that chooses a mode if the configuration names none. Choice is the outcome after the
// first read.
func choosing(ctx context.Context, flags *config.Flags, env Env) (*configuration, *app.Choice) {
	chosen := app.Choice{Reason: "the configuration names it"}
	return &configuration{flags: flags, env: env, opt: config.Options{
		Modes:   app.Modes(env.Kinds),
		Binds:   app.Binds(env.Kinds),
		Default: sync.OnceValue(func() string { chosen = app.Choose(ctx, env.Kinds, 0); return chosen.Mode }),
	}}, &chosen
}

// load reads the configuration for a command that does not depend on what this kernel can do.
func load(flags *config.Flags, env Env) (app.Options, *logs, error) {
	c := configuration{
		flags: flags, env: env, opt: config.Options{Modes: app.Modes(env.Kinds), Binds: app.Binds(env.Kinds)},
	}
	return c.load()
}

// Exit statuses other than 0, which is success.
const (
	exitFailure = 1 // a failure of most commands; of some commands an answer, as they document
	exitTrouble = 2 // there is no answer, of commands where 1 is an answer; or the arguments are wrong
)

// exitError is an error that ends the program with a status. Without err nothing more is printed.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	return exitFailure
}

// trouble returns err with the status exitTrouble, unless it has a status already.
func trouble(err error) error {
	if _, ok := errors.AsType[*exitError](err); err == nil || ok {
		return err
	}
	return &exitError{exitTrouble, err}
}

// answers changes a command whose status 1 is an answer: every error ends with exitTrouble.
func answers(cmd *cobra.Command) *cobra.Command {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, list []string) error { return trouble(run(cmd, list)) }
	return checked(cmd)
}

// checked changes a command so that wrong flags and arguments end with exitTrouble.
func checked(cmd *cobra.Command) *cobra.Command {
	args := cmd.Args
	cmd.Args = func(cmd *cobra.Command, list []string) error { return trouble(args(cmd, list)) }
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return trouble(flagError(cmd, err)) })
	return cmd
}

// stamp is the version that the linker sets: -X .../internal/cli.stamp=v1.2.3.
var stamp string //nolint:gochecknoglobals // the linker can set nothing else

// version returns the version of the build, from the linker or else from the go tool.
func version() string {
	if stamp != "" {
		return stamp
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "v0.0.0-dev"
	}
	return info.Main.Version
}

func newVersion(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(env.Stdout, "sluice %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return err
		},
	}
}

// printVersion prints --version as kube-proxy does, because installers parse it.
func printVersion(w io.Writer, v config.Version) error {
	reported := cmp.Or(v.Report, metrics.KubernetesVersion(version()))
	if v.Print == "raw" {
		_, err := fmt.Fprintf(w, "version.Info{GitVersion:%q, GoVersion:%q, Compiler:%q, Platform:%q}\n",
			reported, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
		return err
	}
	_, err := fmt.Fprintf(w, "Kubernetes %s\n", reported)
	return err
}
