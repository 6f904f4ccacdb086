package cli

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/text"
)

//go:embed help.txt
var helpText string

// about returns the text below a title of help.txt.
func about(title string) string {
	_, text, found := strings.Cut(helpText, "\n["+title+"]\n")
	if !found {
		panic("cli: help.txt has no text about " + title)
	}
	text, _, _ = strings.Cut(text, "\n\n[")
	return strings.TrimSuffix(text, "\n")
}

// help prints what a command does and how it is used: for -h what fits a screen, otherwise all.
func help(cmd *cobra.Command, args []string, w io.Writer) error {
	var b strings.Builder
	brief := slices.Contains(args, "-h")
	about := cmp.Or(cmd.Long, cmd.Short)
	if brief && cmd.HasParent() {
		about = cmd.Short
	}
	fmt.Fprintf(&b, "%s\n\n", about)
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		printCommands(&b, cmd.Commands())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	groups := groupsOf(cmd)
	if brief {
		groups = groups[:1]
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flags.FlagUsagesWrapped(width))
	}
	switch {
	case brief && cmd.Long != "":
		fmt.Fprintf(&b, "\n%s --help says more.\n", cmd.CommandPath())
	case len(groups) > 1:
		b.WriteString("\nFlags of older versions of kube-proxy are accepted too: docs/flags.md lists them.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const width = 100

func printCommands(b *strings.Builder, all []*cobra.Command) {
	out := text.NewColumns(b)
	out.Indent = "  "
	for _, c := range all {
		if c.IsAvailableCommand() {
			out.Row(strings.Join(append([]string{c.Name()}, c.Aliases...), ", "), c.Short)
		}
	}
	_ = out.Flush() // a strings.Builder takes everything
}

// flagGroup has flags of a command below a title.
type flagGroup struct {
	title string
	flags *pflag.FlagSet
}

// groupsOf returns the flags of a command, the most used first.
func groupsOf(cmd *cobra.Command) (groups []flagGroup) {
	if cmd.HasParent() || cmd.Name() == pluginFile {
		return []flagGroup{{"Flags", cmd.Flags()}}
	}
	for _, g := range config.Groups() {
		fs := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		fs.SortFlags = false
		for _, name := range g.Flags {
			fs.AddFlag(cmd.Flags().Lookup(name))
		}
		groups = append(groups, flagGroup{g.Title, fs})
	}
	return groups
}

// maxTypos is how many letters of the name of a command may differ from the argument that is taken for it.
const maxTypos = 2

// misspelledCommand returns an error if an argument is similar to a command.
func misspelledCommand(cmd *cobra.Command, arg string) error {
	if arg == "" {
		return nil
	}
	names := cmd.SuggestionsFor(arg)
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q, did you mean %s?", arg, strings.Join(names, " or "))
}

// flagError adds a suggestion to the error of an unknown flag. Behind a misspelled
// command the flags are not known: then it returns the error of the command.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	for _, arg := range cmd.Flags().Args() {
		if err := misspelledCommand(cmd, arg); err != nil {
			return err
		}
	}
	if unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	name := strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")
	if nearest := text.Nearest(name, flagNames(cmd)); nearest != "" {
		return fmt.Errorf("%w, did you mean --%s?", err, nearest)
	}
	return err
}

// flagNames returns the flags of a command that the help lists, of the command or of the proxy.
func flagNames(cmd *cobra.Command) []string {
	var ofProxy, names []string
	for _, g := range config.Groups() {
		ofProxy = append(ofProxy, g.Flags...)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden || slices.Contains(ofProxy, f.Name) {
			names = append(names, f.Name)
		}
	})
	slices.Sort(names)
	return names
}

func newMan(env Env) *cobra.Command {
	return &cobra.Command{
		Use:     "man",
		Short:   "Print the manual page",
		Long:    about("man"),
		Example: "  sluice man | man -l -",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return manual(cmd.Root(), env.Stdout) },
	}
}

// manual writes the help of a program as a page of section 8.
func manual(root *cobra.Command, w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH SLUICE 8 \"\" \"%s\"\n.SH NAME\n%s \\- %s\n", roff(version()), root.Name(), roff(root.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n[flags]\n.br\n.B %[1]s\nCOMMAND\n.SH DESCRIPTION\n", root.Name())
	writeText(&b, root.Long)
	b.WriteString(".SH COMMANDS\n")
	writeCommands(&b, root)
	b.WriteString(".SH OPTIONS\n")
	for _, g := range groupsOf(root) {
		fmt.Fprintf(&b, ".SS %s\n", roff(g.title))
		writeFlags(&b, g.flags)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeCommands(b *strings.Builder, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if !cmd.IsAvailableCommand() {
			continue
		}
		fmt.Fprintf(b, ".SS %s\n", roff(cmd.UseLine()))
		writeText(b, cmp.Or(cmd.Long, cmd.Short))
		writeFlags(b, cmd.LocalFlags())
		if cmd.HasExample() {
			writeText(b, "Examples:")
			writeText(b, cmd.Example)
		}
		writeCommands(b, cmd)
	}
}

// writeText writes paragraphs. Those with an indented line keep their lines.
func writeText(b *strings.Builder, text string) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(paragraph, "  ") || strings.Contains(paragraph, "\n  ") {
			fmt.Fprintf(b, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
		} else {
			fmt.Fprintf(b, ".PP\n%s\n", roff(paragraph))
		}
	}
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSuffix("--"+f.Name+" "+value, " ")
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if zero := []string{"", "0", "[]", "false", "0s"}; !slices.Contains(zero, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(name), roff(usage))
	})
}

// roff escapes text: no line of it is a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}

// newCompletion returns the command that prints completion scripts.
func newCompletion(env Env) *cobra.Command {
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "Print a script that makes a shell complete commands, flags and names of Services",
		Long:      about("completion"),
		Example:   "  source <(sluice completion bash)",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(env.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(env.Stdout)
			case "fish":
				return root.GenFishCompletion(env.Stdout, true)
			}
			return fmt.Errorf("unknown shell %q: want bash, zsh or fish", args[0])
		},
	}
}

// complete completes the values of a flag by words; without words it completes nothing.
func complete(cmd *cobra.Command, flag string, words []string) {
	// An error means that the flag does not exist or has a completion already.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeModes completes the values of the flags for the mode, and turns off the
// completion of file names for flags that are addresses and names.
func completeModes(root *cobra.Command, modes []string) {
	for _, cmd := range append(root.Commands(), root) {
		for _, flag := range []string{"mode", "proxy-mode"} {
			if cmd.Flags().Lookup(flag) != nil {
				complete(cmd, flag, modes)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "hostname-override" || strings.HasSuffix(f.Name, "-address") || strings.HasSuffix(f.Name, "-cidr") {
				complete(cmd, f.Name, nil)
			}
		})
	}
}

// nameTime bounds the wait of a completion for the daemon.
const nameTime = 2 * time.Second

// askNames asks the daemon for names that begin with a text. Without a daemon there are none.
func askNames(ctx context.Context, path, namespace, begun string) []string {
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	query := url.Values{"namespace": {namespace}, "name": {begun}}
	names, err := admin.All[string](admin.DialNearest().Ask(ctx, path, query))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.ContainsFunc(name, notOfName) })
}

// completeNames completes the names of Services that the daemon knows, in the namespace
// if it is not empty.
func completeNames(namespace *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names := candidates(askNames(cmd.Context(), "/names", *namespace, begun), *namespace, begun)
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespaces completes the namespaces of Services that the daemon knows.
func completeNamespaces(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return askNames(cmd.Context(), "/namespaces", "", begun), cobra.ShellCompDirectiveNoFileComp
}

// candidates returns the names in the form that was begun, with or without the
// namespace.
func candidates(names []string, namespace, begun string) []string {
	var out []string
	for _, full := range names {
		_, name, _ := strings.Cut(full, "/")
		switch {
		case namespace != "":
			out = append(out, name)
		case strings.HasPrefix(full, begun):
			out = append(out, full)
		default:
			out = append(out, name)
		}
	}
	return out
}

// notOfName reports whether no name of a Service has the character.
func notOfName(r rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-./", r)
}
