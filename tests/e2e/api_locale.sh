#!/usr/bin/env bash
# A program with a decimal comma reads the same files and gets the same plan from the C API.
# labels: cpu e2e
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! localedef -i de_DE -f UTF-8 "$work/de_DE.UTF-8" 2>/dev/null; then
  echo "skipped: no sources of locales (Debian: locales)"
  exit 77
fi

cat >"$work/plan.c" <<'SOURCE'
#include <locale.h>
#include <stdio.h>

#include "automap.h"

/* plan MODEL CLUSTER OUT: searches, writes the plan and reads it back; prints the decimal point. */
int main(int count, char **words) {
    AmModule *module;
    AmCluster *cluster;
    AmPlan *plan, *again;
    AmError error;
    AmOptions *options;
    if (count != 4 || !setlocale(LC_ALL, "")) return 2;
    if (am_module_read(&module, words[1], NULL, &error) == AM_OK &&
        am_cluster_read(&cluster, words[2], &error) == AM_OK &&
        am_options_new(&options, AM_COMMAND_SEARCH, &error) == AM_OK &&
        am_options_set(options, "evaluations", "20", &error) == AM_OK &&
        am_options_set(options, "memory-fraction", "0.75", &error) == AM_OK &&
        am_search(&plan, module, cluster, options, NULL, &error) == AM_OK &&
        am_plan_write(plan, words[3], &error) == AM_OK && am_plan_read(&again, module, words[3], &error) == AM_OK) {
        printf("%.1f\n", 0.5);
        am_plan_free(again);
        am_plan_free(plan);
        am_options_free(options);
        am_cluster_free(cluster);
        am_module_free(module);
        return 0;
    }
    printf("%s: %s\n", error.source, error.text);
    return 1;
}
SOURCE
cc -I "$AUTOMAP_SOURCE/include" "$work/plan.c" -o "$work/plan" "$AUTOMAP_LIBRARY" \
  -Wl,-rpath,"$(dirname "$AUTOMAP_LIBRARY")"
"$AUTOMAP" cluster whale-dp --json >"$work/cluster.json"
for form in pb txt json; do
  "$AUTOMAP" convert datasets/models/mlp_tiny/model.hlo.pb "$work/model.hlo.$form"
  point=$("$work/plan" "$work/model.hlo.$form" "$work/cluster.json" "$work/point.json") || { echo "$point"; exit 1; }
  comma=$(LOCPATH=$work LC_ALL=de_DE.UTF-8 "$work/plan" "$work/model.hlo.$form" "$work/cluster.json" \
    "$work/comma.json") ||
    { echo "FAILED: $form with a decimal comma: $comma"; exit 1; }
  if [ "$point $comma" != "0.5 0,5" ]; then echo "FAILED: the locale was not in force: $point $comma"; exit 1; fi
  cmp "$work/point.json" "$work/comma.json"
done
echo "equal plans with a decimal point and a decimal comma"
