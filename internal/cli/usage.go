package cli

import (
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

// usage prints the commands and flags, the most used first.
func usage(cmd *cobra.Command, w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		printCommands(&b, cmd.Commands())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasParent() || cmd.Name() == pluginFile {
		fmt.Fprintf(&b, "\nFlags:\n%s", cmd.Flags().FlagUsagesWrapped(width))
	} else {
		printGroups(&b, cmd.Flags())
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

func printGroups(b *strings.Builder, all *pflag.FlagSet) {
	for _, g := range config.Groups() {
		fs := pflag.NewFlagSet(g.Title, pflag.ContinueOnError)
		fs.SortFlags = false
		for _, name := range g.Flags {
			fs.AddFlag(all.Lookup(name))
		}
		fmt.Fprintf(b, "\n%s:\n%s", g.Title, fs.FlagUsagesWrapped(width))
	}
	b.WriteString("\nFlags of older versions of kube-proxy are accepted too: docs/flags.md lists them.\n")
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
