{{/* Mistakes that would show only in a pod that does not start. Each ends the rendering, with what to do. */}}
{{- define "cdcflow.checks" -}}
{{- $settings := fromYaml .Values.settings -}}
{{- with $settings.Error -}}
{{- fail (printf "settings: the text is not YAML: %s" .) -}}
{{- end -}}
{{- $name := include "cdcflow.name" . -}}
{{- $listen := dig "service" "listen" "" $settings -}}
{{- if not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[0-9]+$" $listen) -}}
{{- fail "settings: the cluster probes the daemon over HTTP: set service.listen to 0.0.0.0:8079, with service.tokens" -}}
{{- end -}}
{{- $kafka := dig "log" "kafka" "" $settings -}}
{{- $path := dig "log" "path" "" $settings -}}
{{- $place := $path -}}
{{- if $kafka -}}
{{- $place = dig "work" "" $kafka -}}
{{- end -}}
{{- if not (hasPrefix "/log/" $place) -}}
{{- fail (printf "settings: the volume is mounted at /log: set %s to /log/cdcflow" (ternary "log.kafka.work" "log.path" (not (empty $kafka)))) -}}
{{- end -}}
{{- include "cdcflow.checkSecrets" (list . "settings" .Values.settings) -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- if not (dig "service" "lease" "" $settings) -}}
{{- fail "replicas: 2 needs a lease, which decides who captures: set service.lease in the settings, such as {at: source, name: shop}" -}}
{{- end -}}
{{- if eq (dig "service" "lease" "at" "" $settings) "file" -}}
{{- fail "replicas: 2: a lease in a file is for daemons on one machine: set service.lease.at to source" -}}
{{- end -}}
{{- if not (or $kafka (dig "log" "replicate" "" $settings) (eq .Values.storage.accessMode "ReadWriteMany")) -}}
{{- fail "replicas: 2: the standby needs the same log: set log.replicate in the settings (and peers.enabled), or log.kafka, or storage.accessMode: ReadWriteMany" -}}
{{- end -}}
{{- end -}}
{{- if .Values.guard.enabled -}}
{{- if ne (dig "source" "kind" "" $settings) "postgres" -}}
{{- fail "guard.enabled: only PostgreSQL keeps log for a reader; set guard.enabled: false" -}}
{{- end -}}
{{- if not (or (dig "source" "log_budget" "" $settings) (dig "source" "log_budget_age" "" $settings)) -}}
{{- fail "guard.enabled: the settings have no budget: set source.log_budget, such as 20GiB, and source.log_budget_then: release" -}}
{{- end -}}
{{- if not (or .Values.guard.slot (dig "source" "slot" "" $settings)) -}}
{{- fail "guard.enabled: a guard does not read the log, so it needs the slot's name: set source.slot in the settings, or guard.slot" -}}
{{- end -}}
{{- end -}}
{{- if .Values.peers.enabled -}}
{{- if not .Values.peers.tlsSecret -}}
{{- fail "peers.enabled: rows cross the network: set peers.tlsSecret to a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- range $number := until (int .Values.peers.count) -}}
{{- $peer := printf "%s-peer-%d.%s-peer" $name $number $name -}}
{{- $found := false -}}
{{- range dig "log" "replicate" "quorum" (list) $settings -}}
{{- if or (eq . (printf "%s:9470" $peer)) (hasPrefix (printf "%s." $peer) .) -}}
{{- $found = true -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "peers.enabled: add \"%s:9470\" to log.replicate.quorum in the settings" $peer) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.merge.enabled -}}
{{- $merge := fromYaml .Values.merge.settings -}}
{{- with $merge.Error -}}
{{- fail (printf "merge.settings: the text is not YAML: %s" .) -}}
{{- end -}}
{{- if dig "log" "path" "" $merge -}}
{{- fail "merge.settings: the merge's pod does not have the log's volume: omit log.path, and set log.objects as in the daemon's settings; or set merge.enabled: false and merge.every in the settings, and the daemon merges" -}}
{{- end -}}
{{- if not (or (dig "log" "objects" "" $merge) (dig "log" "kafka" "" $merge)) -}}
{{- fail "merge.settings: set log.objects or log.kafka: the merge's pod does not have the log's volume" -}}
{{- end -}}
{{- include "cdcflow.checkSecrets" (list . "merge.settings" .Values.merge.settings) -}}
{{- end -}}
{{- end }}

{{/* (list $ "settings" TEXT): each Secret that the text refers to is mounted. */}}
{{- define "cdcflow.checkSecrets" -}}
{{- $root := index . 0 -}}
{{- $where := index . 1 -}}
{{- range regexFindAll "/secrets/[a-z0-9.-]+" (index . 2) -1 -}}
{{- $secret := trimPrefix "/secrets/" . -}}
{{- if not (or (has $secret $root.Values.secrets) (and $root.Values.peers.enabled (eq $secret $root.Values.peers.tlsSecret))) -}}
{{- fail (printf "%s: they refer to /secrets/%s: add %s to `secrets`" $where $secret $secret) -}}
{{- end -}}
{{- end -}}
{{- end }}
