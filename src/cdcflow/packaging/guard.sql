-- Holds the budget of the log that this server keeps for a slot of cdcflow, also while no daemon runs.
-- Run it in the captured database, as the role that cdcflow uses; then, for example with pg_cron (1.5 or newer):
--
--   SELECT cron.schedule('cdcflow guard', '5 seconds',
--     $$CALL cdcflow.guard('cdcflow_1a2b3c4d', 20::bigint << 30)$$);
--
-- It writes the same note as the daemon and `cdcflow guard`, before it drops the slot.
{ddl};

CREATE OR REPLACE PROCEDURE cdcflow.guard(slot_to_guard text, budget_bytes bigint) LANGUAGE plpgsql AS $guard$
DECLARE
  kept bigint;
  kept_before bigint;
  restart pg_lsn;
  confirmed pg_lsn;
  reader integer;
BEGIN
  IF NOT EXISTS (SELECT FROM cdcflow.released_slots n WHERE n.slot = slot_to_guard AND n.dropped_at IS NULL) THEN
    SELECT pg_catalog.pg_current_wal_lsn() - s.restart_lsn, s.restart_lsn, s.confirmed_flush_lsn
    INTO kept, restart, confirmed FROM pg_catalog.pg_replication_slots s
    WHERE s.slot_name = slot_to_guard AND s.slot_type = 'logical' AND s.plugin = 'pgoutput' AND NOT s.temporary
      AND s.database = pg_catalog.current_database();
    IF kept IS NULL OR kept < budget_bytes THEN
      RETURN;
    END IF;
    -- A reader that is catching up frees it by itself.
    kept_before := kept;
    PERFORM pg_catalog.pg_sleep(1);
    SELECT pg_catalog.pg_current_wal_lsn() - s.restart_lsn INTO kept
    FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = slot_to_guard;
    IF kept IS NULL OR kept < kept_before THEN
      RETURN;
    END IF;
    INSERT INTO cdcflow.released_slots AS n (slot, id, why, noted_by, restart_lsn, confirmed_lsn)
    VALUES (slot_to_guard, pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''),
            pg_catalog.format('%s bytes kept, and the budget is %s bytes', kept, budget_bytes), 'cdcflow.guard',
            restart, confirmed)
    ON CONFLICT (slot) DO UPDATE SET id = excluded.id, why = excluded.why, noted_by = excluded.noted_by,
      noted_at = now(), restart_lsn = excluded.restart_lsn, confirmed_lsn = excluded.confirmed_lsn, dropped_at = NULL
    WHERE n.dropped_at IS NOT NULL;
    COMMIT;  -- the note is durable before the slot is gone
  END IF;
  -- Until the drop is noted, no other process may finish this release: it could drop the slot that follows.
  PERFORM 1 FROM cdcflow.released_slots n WHERE n.slot = slot_to_guard AND n.dropped_at IS NULL FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  FOR attempt IN 1 .. 300 LOOP
    SELECT s.active_pid INTO reader FROM pg_catalog.pg_replication_slots s
    WHERE s.slot_name = slot_to_guard AND s.slot_type = 'logical' AND s.plugin = 'pgoutput' AND NOT s.temporary
      AND s.database = pg_catalog.current_database();
    IF NOT FOUND THEN
      -- What the daemon reads a backlog through keeps the same log.
      PERFORM pg_catalog.pg_terminate_backend(s.active_pid) FROM pg_catalog.pg_replication_slots s
      WHERE s.temporary AND s.database = pg_catalog.current_database() AND s.active_pid IS NOT NULL
        AND s.slot_name = left(slot_to_guard, 63 - length('_catch_up_' || s.active_pid)) || '_catch_up_' || s.active_pid;
      UPDATE cdcflow.released_slots SET dropped_at = clock_timestamp() WHERE slot = slot_to_guard;
      COMMIT;
      RETURN;
    END IF;
    IF reader IS NOT NULL THEN
      PERFORM pg_catalog.pg_terminate_backend(reader);
      PERFORM pg_catalog.pg_sleep(0.1);
    ELSE
      BEGIN
        PERFORM pg_catalog.pg_drop_replication_slot(slot_to_guard);
      EXCEPTION WHEN object_in_use THEN
        NULL;  -- its reader has connected again
      END;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'slot % stays in use; its release is noted, and the next call tries again', slot_to_guard;
END
$guard$;
