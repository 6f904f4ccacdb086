package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/text"
)

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
