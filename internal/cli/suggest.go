package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/text"
)

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
